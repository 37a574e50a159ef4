{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What every object of a release has. */ -}}
{{- define "tandem.labels" -}}
app.kubernetes.io/part-of: {{ include "tandem.fullname" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* By which one component's pods are selected: (list root component). */ -}}
{{- define "tandem.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/part-of: {{ include "tandem.fullname" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tandem.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "tandem.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tandem.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tandem.etcdEndpoints" -}}
{{- if .Values.etcd.endpoints -}}
{{- join "," .Values.etcd.endpoints -}}
{{- else if .Values.etcd.enabled -}}
http://{{ include "tandem.fullname" . }}-etcd:2379
{{- else -}}
{{- fail "discovery.mode etcd needs etcd.endpoints, or etcd.enabled: true" -}}
{{- end -}}
{{- end -}}

{{- /* Whether the chart runs a server: (list root etcd|nats). Workers in pods register nowhere; gateways share by NATS there too. */ -}}
{{- define "tandem.runs" -}}
{{- $v := (index . 0).Values -}}{{- $name := index . 1 -}}
{{- if and (index $v $name).enabled (or (eq $v.discovery.mode "etcd") (and (eq $name "nats") (eq $v.discovery.mode "kubernetes"))) -}}true{{- end -}}
{{- end -}}

{{- define "tandem.natsURL" -}}
{{- if .Values.nats.url -}}
{{- .Values.nats.url -}}
{{- else if .Values.nats.enabled -}}
nats://{{ include "tandem.fullname" . }}-nats:4222
{{- end -}}
{{- end -}}

{{- /* The gateway's settings: what the chart derives, and over it gateway.config. */ -}}
{{- define "tandem.config" -}}
{{- $g := .Values.gateway -}}
{{- range $key := list "shutdown-grace" "drain-timeout" "shutdown_grace" "drain_timeout" -}}
{{- if hasKey $g.config $key -}}{{- fail (printf "gateway.config.%s: set gateway.graceSeconds and gateway.drainSeconds, from which the pod's own limit follows" $key) -}}{{- end -}}
{{- end -}}
{{- $c := dict "http-host" "0.0.0.0" "http-port" 8000 "log-format" "json" -}}
{{- $_ := set $c "shutdown-grace" (printf "%ds" (int $g.graceSeconds)) -}}
{{- $_ := set $c "drain-timeout" (printf "%ds" (int $g.drainSeconds)) -}}
{{- if $g.apiKeys.existingSecret -}}{{- $_ := set $c "api-key-file" (printf "/etc/tandem/api-keys/%s" $g.apiKeys.key) -}}{{- end -}}
{{- if $g.adminKeys.existingSecret -}}{{- $_ := set $c "admin-key-file" (printf "/etc/tandem/admin-keys/%s" $g.adminKeys.key) -}}{{- end -}}
{{- if $g.workerKey.existingSecret -}}{{- $_ := set $c "worker-api-key-file" (printf "/etc/tandem/worker-key/%s" $g.workerKey.key) -}}{{- end -}}
{{- if $g.admin.enabled -}}
{{- if not (or $g.adminKeys.existingSecret .Values.networkPolicy.enabled) -}}
{{- fail "gateway.admin.enabled needs gateway.adminKeys.existingSecret or networkPolicy.enabled: every pod could cordon workers" -}}
{{- end -}}
{{- $_ := set $c "admin-address" (printf "0.0.0.0:%d" (int $g.admin.port)) -}}
{{- end -}}
{{- if eq .Values.discovery.mode "kubernetes" -}}
{{- $selector := default (printf "tandem.dev/fleet=%s" (include "tandem.fullname" .)) .Values.discovery.selector -}}
{{- with .Values.discovery.namespace -}}{{- $selector = printf "%s:%s" . $selector -}}{{- end -}}
{{- $_ := set $c "kubernetes-selector" $selector -}}
{{- with include "tandem.natsURL" . -}}{{- $_ := set $c "nats-url" . -}}{{- end -}}
{{- else if eq .Values.discovery.mode "etcd" -}}
{{- with include "tandem.natsURL" . -}}
{{- $_ := set $c "nats-url" . -}}
{{- else -}}
{{- $_ := set $c "router-kv-events" false -}}
{{- end -}}
{{- end -}}
{{- if $g.tls.existingSecret -}}
{{- $_ := set $c "tls-cert-file" "/etc/tandem/tls/tls.crt" -}}
{{- $_ := set $c "tls-key-file" "/etc/tandem/tls/tls.key" -}}
{{- end -}}
{{- if $g.tls.clientCA.existingSecret -}}{{- $_ := set $c "tls-client-ca-file" (printf "/etc/tandem/client-ca/%s" $g.tls.clientCA.key) -}}{{- end -}}
{{- if and $g.workerTLS.existingSecret $g.workerTLS.ca -}}{{- $_ := set $c "worker-ca-file" (printf "/etc/tandem/worker-tls/%s" $g.workerTLS.ca) -}}{{- end -}}
{{- $access := include "tandem.access" (dict "root" . "attach" false) | fromYaml -}}
{{- with index $access.settings "etcd-endpoints" -}}{{- $_ := set $access.settings "etcd-endpoints" (splitList "," .) -}}{{- end -}}
{{- $identities := append $access.identities (dict "folder" "/etc/tandem/worker-tls" "block" $g.workerTLS) -}}
{{- $c = merge $c $access.settings (include "tandem.identity" $identities | fromYaml) -}}
{{- if $g.peers.existingSecret -}}
{{- if and (ne .Values.discovery.mode "none") (include "tandem.natsURL" .) -}}{{- fail "gateway.peers: by nats.url, or nats.enabled, the gateways have a NATS in common; set one of the two" -}}{{- end -}}
{{- $_ := set $c "replica-peers" (list (printf "%s-peers:6222" (include "tandem.fullname" .))) -}}
{{- $_ := set $c "embed-listen" "0.0.0.0" -}}
{{- $_ := set $c "embed-password-file" (printf "/etc/tandem/peers/%s" $g.peers.key) -}}
{{- end -}}
{{- $c = mergeOverwrite $c (deepCopy $g.config) -}}
{{- if not (index $c "tls-cert-file") -}}
{{- if $g.tls.clientCA.existingSecret -}}{{- fail "gateway.tls.clientCA needs gateway.tls.existingSecret: certificates are shown over TLS only" -}}{{- end -}}
{{- if $g.peers.existingSecret -}}{{- fail "gateway.peers needs gateway.tls.existingSecret: the gateways show each other the certificate that clients see" -}}{{- end -}}
{{- end -}}
{{- toYaml $c -}}
{{- end -}}
