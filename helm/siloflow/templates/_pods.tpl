{{/* What all pods have in common: Pod Security "restricted", no token, a read-only root file system. */}}

{{- define "siloflow.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "siloflow.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "siloflow.priority" -}}
{{- with .Values.priorityClass.name | default (ternary (include "siloflow.fullname" .) "" .Values.priorityClass.create) }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Fields of a pod of the chart's own; silos have their own nodes and tolerations. */}}
{{- define "siloflow.podBase" -}}
serviceAccountName: {{ include "siloflow.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "siloflow.podSecurity" . | nindent 2 }}
{{- with .Values.image.pull_secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- include "siloflow.priority" . }}
{{- end }}

{{- define "siloflow.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Image, pull policy and security of a container that runs siloflow. */}}
{{- define "siloflow.containerBase" -}}
image: {{ .Values.image.name | quote }}
imagePullPolicy: {{ .Values.image.pull_policy }}
securityContext:
  {{- include "siloflow.containerSecurity" . | nindent 2 }}
{{- end }}

{{- define "siloflow.environment" -}}
- {name: HOME, value: /tmp}
- {name: SILOFLOW_CREDENTIALS, value: /credentials}
- {name: SILOFLOW_CONTAINER_IMAGE, value: {{ .Values.image.name | quote }}}
{{- if .Values.ca_secret }}
- {name: SILOFLOW_CA, value: /ca/ca.crt}
{{- end }}
{{- with .Values.monitoring.pushgateway.url }}
- {name: SILOFLOW_PUSHGATEWAY, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "siloflow.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.ca_secret }}
- {name: ca, mountPath: /ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "siloflow.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.ca_secret }}
- name: ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}

{{- define "siloflow.configVolume" -}}
- name: config
  configMap:
    name: {{ include "siloflow.fullname" . }}
{{- end }}

{{/* Keys as sources of a projected volume, a folder for each role. */}}
{{- define "siloflow.roleKeys" -}}
{{- range include "siloflow.roles" . | fromYamlArray }}
{{- include "siloflow.keysOf" . }}
{{- end }}
{{- end }}

{{/* Call with one of siloflow.roles. */}}
{{- define "siloflow.keysOf" }}
- secret:
    name: {{ .secret }}
    items:
      - {key: access_key, path: {{ .role }}/access_key}
      - {key: secret_key, path: {{ .role }}/secret_key}
{{- end }}

{{- define "siloflow.adminKeys" -}}
- secret:
    name: {{ include "siloflow.adminSecret" . }}
    items:
      - {key: access_key, path: admin/access_key}
      - {key: secret_key, path: admin/secret_key}
{{- end }}
