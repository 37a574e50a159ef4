{{- /* What a process shows etcd, NATS and workers: of blocks with a Secret, each below its folder, the one with a certificate. */ -}}
{{- define "tandem.identity" -}}
{{- $s := dict -}}{{- $from := "" -}}
{{- range . -}}
{{- $b := .block -}}
{{- if and $b.existingSecret $b.cert -}}
{{- if and $from (ne $from $b.existingSecret) -}}{{- fail (printf "%s, %s: etcd, NATS and workers are shown one certificate; set cert to \"\" for all Secrets but one" $from $b.existingSecret) -}}{{- end -}}
{{- $from = $b.existingSecret -}}
{{- $_ := set $s "client-cert-file" (printf "%s/%s" .folder $b.cert) -}}
{{- $_ := set $s "client-key-file" (printf "%s/%s" .folder (required (printf "%s: with cert goes key, its private key" $from) $b.key)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $s -}}
{{- end -}}

{{- /* How etcd and NATS know a process, and it them: (dict "root" $ "attach" bool) → settings, the secrets that they are in, and the
blocks of [tandem.identity]. Sidecars
prove themselves as gateways do, where they have no Secret of their own: with one they get none of the gateways'. */ -}}
{{- define "tandem.access" -}}
{{- $v := .root.Values -}}{{- $attach := .attach -}}
{{- $servers := dict -}}
{{- if eq $v.discovery.mode "etcd" -}}{{- $_ := set $servers "etcd" (dict "of" $v.etcd "elsewhere" $v.etcd.endpoints) -}}{{- end -}}
{{- if and (ne $v.discovery.mode "none") (include "tandem.natsURL" .root) -}}{{- $_ := set $servers "nats" (dict "of" $v.nats "elsewhere" $v.nats.url) -}}{{- end -}}
{{- $settings := dict -}}{{- $secrets := list -}}{{- $identities := list -}}
{{- if $servers.etcd -}}{{- $_ := set $settings "etcd-endpoints" (include "tandem.etcdEndpoints" .root) -}}{{- end -}}
{{- range $server, $s := $servers -}}
{{- $from := $s.of -}}
{{- if $attach -}}{{- range $own := $s.of.attach -}}{{- if $own.existingSecret -}}{{- $from = $s.of.attach -}}{{- end -}}{{- end -}}{{- end -}}
{{- range $part := list "tls" "auth" "creds" -}}
{{- $b := default dict (index $from $part) -}}
{{- if $b.existingSecret -}}
{{- if and $s.of.enabled (not $s.elsewhere) -}}{{- fail (printf "%s.%s: the %s that the chart runs has neither TLS nor users; name your own in its place" $server $part $server) -}}{{- end -}}
{{- $name := printf "%s-%s" $server $part -}}
{{- $folder := printf "/etc/tandem/%s" $name -}}
{{- $secrets = append $secrets (dict "name" $name "secret" $b.existingSecret) -}}
{{- if eq $part "tls" -}}
{{- with $b.ca -}}{{- $_ := set $settings (printf "%s-ca-file" $server) (printf "%s/%s" $folder .) -}}{{- end -}}
{{- $identities = append $identities (dict "folder" $folder "block" $b) -}}
{{- else if eq $part "auth" -}}
{{- $user := printf "${1}%s@" (required "etcd.auth.user: whose password it is" $b.user) -}}
{{- $_ := set $settings "etcd-endpoints" (regexReplaceAll "((?:^|,)(?:https?://)?)" (index $settings "etcd-endpoints") $user) -}}
{{- $_ := set $settings "etcd-password-file" (printf "%s/%s" $folder $b.key) -}}
{{- else -}}
{{- $_ := set $settings "nats-creds" (printf "%s/%s" $folder $b.key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "settings" $settings "secrets" $secrets "identities" $identities | toYaml -}}
{{- end -}}

{{- /* The Secrets that the gateway's pod mounts, each below /etc/tandem. */ -}}
{{- define "tandem.gatewaySecrets" -}}
{{- $g := .Values.gateway -}}
{{- $secrets := list -}}
{{- range $of := list (list "api-keys" $g.apiKeys) (list "admin-keys" $g.adminKeys) (list "worker-key" $g.workerKey) (list "tls" $g.tls)
      (list "client-ca" $g.tls.clientCA) (list "worker-tls" $g.workerTLS) (list "peers" $g.peers) -}}
{{- with (index $of 1).existingSecret -}}{{- $secrets = append $secrets (dict "name" (index $of 0) "secret" .) -}}{{- end -}}
{{- end -}}
{{- concat $secrets (include "tandem.access" (dict "root" . "attach" false) | fromYaml).secrets | toYaml -}}
{{- end -}}

{{- /* How a pool's sidecar knows its engine, and the engine it; {} for one without TLS. */ -}}
{{- define "tandem.attachWorkerTLS" -}}
{{- $w := .root.Values.gateway.workerTLS -}}
{{- $b := ternary $w.attach $w (ne $w.attach.existingSecret "") -}}
{{- if and $b.existingSecret (eq (default "http" .pool.scheme) "https") -}}{{- toYaml $b -}}{{- end -}}
{{- end -}}

{{- /* Those that a pool's sidecar mounts: (dict "root" $ "pool" pool). */ -}}
{{- define "tandem.attachSecrets" -}}
{{- $g := .root.Values.gateway -}}
{{- $secrets := list -}}
{{- with $g.workerKey.existingSecret -}}{{- $secrets = append $secrets (dict "name" "worker-key" "secret" .) -}}{{- end -}}
{{- with (include "tandem.attachWorkerTLS" . | fromYaml).existingSecret -}}{{- $secrets = append $secrets (dict "name" "worker-tls" "secret" .) -}}{{- end -}}
{{- concat $secrets (include "tandem.access" (dict "root" .root "attach" true) | fromYaml).secrets | toYaml -}}
{{- end -}}

{{- /* The settings that they are for. */ -}}
{{- define "tandem.attachSettings" -}}
{{- $g := .root.Values.gateway -}}
{{- $access := include "tandem.access" (dict "root" .root "attach" true) | fromYaml -}}
{{- $s := $access.settings -}}{{- $identities := $access.identities -}}
{{- if $g.workerKey.existingSecret -}}{{- $_ := set $s "worker-api-key-file" (printf "/etc/tandem/worker-key/%s" $g.workerKey.key) -}}{{- end -}}
{{- with include "tandem.attachWorkerTLS" . | fromYaml -}}
{{- if .ca -}}{{- $_ := set $s "worker-ca-file" (printf "/etc/tandem/worker-tls/%s" .ca) -}}{{- end -}}
{{- if .existingSecret -}}{{- $identities = append $identities (dict "folder" "/etc/tandem/worker-tls" "block" .) -}}{{- end -}}
{{- end -}}
{{- $s = merge $s (include "tandem.identity" $identities | fromYaml) -}}
{{- toYaml $s -}}
{{- end -}}

{{- define "tandem.mounts" -}}
{{- range . }}
- {name: {{ .name }}, mountPath: /etc/tandem/{{ .name }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tandem.volumes" -}}
{{- range . }}
- name: {{ .name }}
  secret: {secretName: {{ .secret }}}
{{- end }}
{{- end -}}

{{- /* What of TLS the gateway's settings have, wherever they come from: "" or "tls", and "mutual" where clients must show a certificate. */ -}}
{{- define "tandem.tls" -}}
{{- $c := include "tandem.config" . | fromYaml -}}
{{- if index $c "tls-cert-file" -}}{{- ternary "mutual" "tls" (ne (default "" (index $c "tls-client-ca-file")) "") -}}{{- end -}}
{{- end -}}

{{- /* A probe of the gateway that asks whether the process lives: (tandem.tls). */ -}}
{{- define "tandem.live" -}}
{{- if eq . "mutual" -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: /live, port: http{{ if . }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end -}}

{{- /* Whether gateways speak with each other: over the NATS inside them, or another. */ -}}
{{- define "tandem.shares" -}}
{{- if or .Values.gateway.peers.existingSecret (and (ne .Values.discovery.mode "none") (include "tandem.natsURL" .)) -}}true{{- end -}}
{{- end -}}
