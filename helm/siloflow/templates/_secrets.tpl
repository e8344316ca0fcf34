{{/* One Secret that the chart makes up, and whose a Secret is. */}}

{{- define "siloflow.secret" -}}
{{- /* (list $ namespace name component data) */ -}}
{{- $root := index . 0 }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ index . 2 }}
  namespace: {{ index . 1 }}
  labels:
    {{- include "siloflow.labels" (list $root (index . 3)) | nindent 4 }}
  {{- if $root.Values.keepSecrets }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
type: Opaque
data:
  {{- toYaml (index . 4) | nindent 2 }}
{{- end }}

{{- define "siloflow.ours" -}}
{{- /* (list $ secret): whether it is this release's */ -}}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" (index . 1) }}
{{- if eq $owner (index . 0).Release.Name }}true{{ end }}
{{- end }}
