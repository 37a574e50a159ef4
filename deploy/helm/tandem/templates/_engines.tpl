{{- /* How each engine is started: (dict "pool" pool) → command, args, env, ports, health path. docs/engines.md explains each flag. */ -}}
{{- define "tandem.engine" -}}
{{- $p := .pool -}}
{{- $split := ne $p.role "both" -}}
{{- $events := `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}` -}}
{{- if eq $p.engine "vllm" -}}
command: [vllm, serve]
args:
  - {{ required "a pool of vllm needs model" $p.model | quote }}
  - --port=8000
  - --enable-prompt-tokens-details
  {{- if $split }}
  - --kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_{{ ternary "producer" "consumer" (eq $p.role "prefill") }}","kv_load_failure_policy":"fail"}
  {{- end }}
  - --kv-events-config={{ $events }}
env:
  # Where other engines fetch KV.
  - name: VLLM_NIXL_SIDE_CHANNEL_HOST
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: "5600"}
port: 8000
ports:
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5558}
  - {name: nixl, containerPort: 5600}
{{- else if eq $p.engine "sglang" -}}
command: [python3, -m, sglang.launch_server]
args:
  - --model-path
  - {{ required "a pool of sglang needs model" $p.model | quote }}
  - --host=0.0.0.0
  - --port=30000
  - --page-size=64
  - --enable-cache-report
  {{- if $split }}
  - --disaggregation-mode={{ $p.role }}
  - --disaggregation-transfer-backend=nixl
  {{- end }}
  {{- if eq $p.role "prefill" }}
  - --disaggregation-bootstrap-port=8998
  {{- end }}
  {{- if ne $p.role "decode" }}
  - --kv-events-config={"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv-events"}
  {{- end }}
env: []
port: 30000
ports:
  {{- if ne $p.role "decode" }}
  - {name: kv-events, containerPort: 5557}
  - {name: kv-replay, containerPort: 5558}
  {{- else }}
  []
  {{- end }}
  {{- if eq $p.role "prefill" }}
  - {name: bootstrap, containerPort: 8998}
  {{- end }}
{{- else if eq $p.engine "trtllm" -}}
command: [trtllm-serve]
args:
  - {{ required "a pool of trtllm needs model" $p.model | quote }}
  - --host=0.0.0.0
  - --port=8000
  - --extra_llm_api_options=/etc/tandem/engine/options.yaml
env: []
port: 8000
ports: []
{{- else -}}
command: []
args: []
env: []
port: 8000
ports: []
{{- end -}}
{{- end -}}

{{- /* TensorRT-LLM's file of options: what hand-over needs, and over it the pool's engineConfig. */ -}}
{{- define "tandem.engineConfig" -}}
{{- $p := .pool -}}
{{- $c := dict -}}
{{- if ne $p.role "both" -}}
{{- $c = dict "kv_cache_config" (dict "enable_block_reuse" true "tokens_per_block" 32) "cache_transceiver_config" (dict "backend" "DEFAULT" "max_tokens_in_buffer" 32768) -}}
{{- if eq $p.role "prefill" -}}{{- $_ := set $c "disable_overlap_scheduler" true -}}{{- end -}}
{{- end -}}
{{- mergeOverwrite $c (deepCopy (default dict $p.engineConfig)) | toYaml -}}
{{- end -}}
