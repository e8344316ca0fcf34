{{/* Peers of the NetworkPolicies. */}}

{{/* No default labels: Helm merges mappings, and who gives others would have to take those away first. */}}
{{- define "siloflow.podsWith" -}}
podSelector: {{ ternary (dict "matchLabels" .) dict (gt (len .) 0) | toJson }}
{{- end }}

{{- define "siloflow.toDns" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.dns.namespace }}}}
      {{- include "siloflow.podsWith" .Values.networkPolicy.dns.podLabels | nindent 6 }}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{- define "siloflow.toStore" -}}
{{- if .Values.embeddedStore.enabled -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}}}
      podSelector:
        matchLabels:
          {{- include "siloflow.selector" . | nindent 10 }}
          siloflow.io/role: store
  ports:
    - {protocol: TCP, port: 9000}
{{- else -}}
- to:
    {{- range .Values.externalStore.cidrs }}
    - ipBlock:
        cidr: {{ . }}
        {{- with $.Values.externalStore.except }}
        except:
          {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- end }}
  ports:
    - {protocol: TCP, port: {{ include "siloflow.storePort" . }}}
{{- end }}
{{- end }}

{{- define "siloflow.toKfp" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.kfpNamespace }}}}
{{- end }}

{{- define "siloflow.toPushgateway" -}}
{{- with .Values.monitoring.pushgateway -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .namespace }}}}
      {{- include "siloflow.podsWith" .podLabels | nindent 6 }}
  ports:
    - {protocol: TCP, port: {{ .port }}}
{{- end }}
{{- end }}

{{- define "siloflow.fromPrometheus" -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.prometheus.namespace }}}}
  {{- include "siloflow.podsWith" .Values.networkPolicy.prometheus.podLabels | nindent 2 }}
{{- end }}
