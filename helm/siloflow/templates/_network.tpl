{{/* Peers of the NetworkPolicies. */}}

{{- define "siloflow.toDns" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.dns.namespace }}}}
      podSelector:
        matchLabels:
          {{- toYaml .Values.networkPolicy.dns.podLabels | nindent 10 }}
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
      podSelector:
        matchLabels:
          {{- toYaml .podLabels | nindent 10 }}
  ports:
    - {protocol: TCP, port: {{ .port }}}
{{- end }}
{{- end }}

{{- define "siloflow.fromPrometheus" -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.prometheus.namespace }}}}
  podSelector:
    {{- if .Values.networkPolicy.prometheus.podLabels }}
    matchLabels:
      {{- toYaml .Values.networkPolicy.prometheus.podLabels | nindent 6 }}
    {{- else }} {}
    {{- end }}
{{- end }}
