{{/* The pod of a role that takes part in one run from its first to its last round. */}}

{{- define "siloflow.residentPod" -}}
{{- /* (list $ role) */ -}}
{{- $root := index . 0 }}
{{- $role := index . 1 }}
{{- $pod := $role.pod }}
{{- $resources := mergeOverwrite (dict "requests" (dict "cpu" "500m" "memory" "1Gi") "limits" (dict "cpu" "1" "memory" "4Gi")) (deepCopy ($pod.resources | default dict)) }}
{{- with $pod.gpu }}{{ $_ := set $resources.limits (.type | default "nvidia.com/gpu") .count }}{{ end }}
{{- $state := dig "path" "/state" ($pod.state | default dict) }}
{{- $address := include "siloflow.storeWith" (list $root (printf "/%s" $root.Values.resident.run)) -}}
{{ include "siloflow.podBase" $root }}
restartPolicy: OnFailure
terminationGracePeriodSeconds: 60
{{- with $pod.node_selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- range . }}
  - operator: {{ .operator | default "Exists" }}
    {{- with .key }}
    key: {{ . | quote }}
    {{- end }}
    {{- with .value }}
    value: {{ . | quote }}
    {{- end }}
    {{- with .effect }}
    effect: {{ . }}
    {{- end }}
  {{- end }}
{{- end }}
containers:
  - name: main
    {{- include "siloflow.containerBase" $root | nindent 4 }}
    args:
      - {{ $role.kind }}
      - {{ $address | quote }}
      {{- if eq $role.kind "silo" }}
      - --name={{ $role.role }}
      {{- end }}
      {{- if eq $role.kind "server" }}
      - --spec=/config/spec.yaml
      {{- range $root.Values.silos }}
      - --silo={{ .name }}
      {{- end }}
      {{- else }}
      - --wait={{ $root.Values.resident.waitSeconds | int }}
      {{- end }}
    env:
      {{- include "siloflow.environment" $root | nindent 6 }}
      - {name: SILOFLOW_METRICS_PORT, value: {{ $root.Values.monitoring.port | quote }}}
      - {name: SILOFLOW_METRICS_ADDRESS, value: 0.0.0.0}
      - {name: SILOFLOW_PIPELINE, value: resident}
      - {name: SILOFLOW_STATE, value: {{ $state }}}
      - {name: SILOFLOW_CACHE, value: {{ $state }}/cache}
      {{- $cores := toString $resources.limits.cpu }}
      {{- $threads := ternary (div (trimSuffix "m" $cores | int) 1000) ($cores | float64 | floor | int) (hasSuffix "m" $cores) }}
      - {name: SILOFLOW_THREADS, value: {{ max 1 $threads | quote }}}
      {{- with $pod.data }}
      - {name: SILOFLOW_DATA, value: {{ .path | default "/data" }}}
      {{- end }}
      {{- if eq ($pod.secret_as | default "file") "env" }}
      {{- range $variable, $key := dict "SILOFLOW_ACCESS_KEY" "access_key" "SILOFLOW_SECRET_KEY" "secret_key" }}
      - name: {{ $variable }}
        valueFrom: {secretKeyRef: {name: {{ $role.secret }}, key: {{ $key }}}}
      {{- end }}
      {{- end }}
    ports:
      - {name: metrics, containerPort: {{ $root.Values.monitoring.port }}}
    resources:
      {{- toYaml $resources | nindent 6 }}
    volumeMounts:
      {{- include "siloflow.mounts" $root | nindent 6 }}
      {{- if ne ($pod.secret_as | default "file") "env" }}
      - {name: credentials, mountPath: /credentials/{{ $role.role }}, readOnly: true}
      {{- end }}
      - {name: state, mountPath: {{ $state }}{{ with dig "sub_path" "" ($pod.state | default dict) }}, subPath: {{ . }}{{ end }}}
      {{- with $pod.data }}
      - {name: data, mountPath: {{ .path | default "/data" }}, readOnly: true{{ with .sub_path }}, subPath: {{ . }}{{ end }}}
      {{- end }}
      {{- if $pod.shm }}
      - {name: shm, mountPath: /dev/shm}
      {{- end }}
      {{- if eq $role.kind "server" }}
      - {name: config, mountPath: /config, readOnly: true}
      {{- end }}
volumes:
  {{- include "siloflow.volumes" $root | nindent 2 }}
  {{- if ne ($pod.secret_as | default "file") "env" }}
  - name: credentials
    secret:
      secretName: {{ $role.secret }}
      defaultMode: 0440
  {{- end }}
  - name: state
    {{- if $pod.state }}
    persistentVolumeClaim: {claimName: {{ $pod.state.claim }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- with $pod.data }}
  - name: data
    persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}
  {{- end }}
  {{- with $pod.shm }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}
  {{- end }}
  {{- if eq $role.kind "server" }}
  {{- include "siloflow.configVolume" $root | nindent 2 }}
  {{- end }}
{{- end }}
