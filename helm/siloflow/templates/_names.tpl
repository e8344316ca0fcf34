{{/* Names, labels and what is derived from the store's address. */}}

{{- define "siloflow.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "siloflow.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "siloflow.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "siloflow.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "siloflow.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "siloflow.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "siloflow.runsNamespace" -}}
{{- .Values.runs.namespace | default .Release.Namespace }}
{{- end }}

{{/* Never change in the life of a release: selectors are immutable. */}}
{{- define "siloflow.selector" -}}
app.kubernetes.io/name: {{ include "siloflow.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Call with (list $ "component"). */}}
{{- define "siloflow.labels" -}}
{{- $root := index . 0 -}}
{{ include "siloflow.selector" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: siloflow
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* ---- the store */}}

{{- define "siloflow.storeHost" -}}
{{ include "siloflow.fullname" . }}-store.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "siloflow.store" -}}
{{- if .Values.store }}
{{- .Values.store }}
{{- else if .Values.embeddedStore.enabled }}
{{- printf "s3://%s:9000/%s?tls=%t" (include "siloflow.storeHost" .) .Values.embeddedStore.prefix .Values.embeddedStore.tls.enabled }}
{{- end }}
{{- end }}

{{/* s3://host/fed?tls=false -> s3://host/fed/run?tls=false; call with (list $ "/run"). */}}
{{- define "siloflow.storeWith" -}}
{{- regexReplaceAll "^(s3://[^/?]+/[a-z0-9-]+)(.*)$" (include "siloflow.store" (index . 0)) (printf "${1}%s${2}" (index . 1)) }}
{{- end }}

{{- define "siloflow.storePort" -}}
{{- $port := regexReplaceAll "^s3://[^/:?]+(:([0-9]+))?.*$" (include "siloflow.store" .) "${2}" }}
{{- $port | default (ternary 80 443 (contains "tls=false" (include "siloflow.store" .))) }}
{{- end }}

{{- define "siloflow.adminSecret" -}}
{{- if .Values.embeddedStore.enabled }}
{{- .Values.embeddedStore.adminSecret | default (printf "%s-store-admin" (include "siloflow.fullname" .)) }}
{{- else }}
{{- .Values.externalStore.adminSecret }}
{{- end }}
{{- end }}

{{/* Whether this release sets the store up: "true" or nothing. */}}
{{- define "siloflow.provisions" -}}
{{- if and (eq .Values.role "federation") .Values.provision.enabled (include "siloflow.adminSecret" .) }}true{{ end }}
{{- end }}

{{/* ---- the federation */}}

{{/* silos.yaml as the product's commands read it. */}}
{{- define "siloflow.silosFile" -}}
{{- $file := dict "store" (include "siloflow.store" .) "silos" .Values.silos "image" .Values.image }}
{{- range $key := list "server" "evaluator" "ca_secret" "service_account" }}
{{- with index $.Values $key }}{{ $_ := set $file $key . }}{{ end }}
{{- end }}
{{- toYaml $file }}
{{- end }}

{{/* Everybody with keys in this release, as a YAML list of {role, kind, secret, value, pod}; value: where it is in the values. */}}
{{- define "siloflow.roles" -}}
{{- $roles := list }}
{{- if eq .Values.role "federation" }}
{{- range $role := list "server" "evaluator" }}
{{- $pod := index $.Values $role | default dict }}
{{- $roles = append $roles (dict "role" $role "kind" $role "value" $role "pod" $pod "secret" ($pod.secret | default (printf "siloflow-%s" $role))) }}
{{- end }}
{{- end }}
{{- range $index, $silo := .Values.silos }}
{{- $secret := $silo.secret | default (printf "siloflow-%s" $silo.name) }}
{{- $roles = append $roles (dict "role" $silo.name "kind" "silo" "value" (printf "silos[%d]" $index) "pod" $silo "secret" $secret) }}
{{- end }}
{{- toYaml $roles }}
{{- end }}
