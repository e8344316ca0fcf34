{{/*
What the schema cannot say. Included once, by the ConfigMap: whatever is wrong fails the rendering, before anything is created.
Each message names the value, what was expected, what was found and what to do.
*/}}
{{- define "siloflow.validate" -}}
{{- $v := .Values }}
{{- include "siloflow.validate.silos" . }}
{{- if not (include "siloflow.store" .) }}
{{- fail "store: expected s3://host[:port]/prefix, found none; set store, or embeddedStore.enabled=true" }}
{{- end }}
{{- if regexMatch "-silo(-|$)" (regexReplaceAll "^s3://[^/?]+/([a-z0-9-]+).*$" (include "siloflow.store" .) "${1}") }}
{{- fail "store: expected a prefix without '-silo' in it, whose buckets could be a silo's of another federation; choose another prefix" }}
{{- end }}
{{- if eq $v.role "silo" }}
{{- include "siloflow.validate.siloRole" . }}
{{- else if $v.embeddedStore.enabled }}
{{- include "siloflow.validate.embedded" . }}
{{- else if and $v.createSecrets (not (include "siloflow.provisions" .)) }}
{{- fail "createSecrets: expected false: nobody tells the external store the keys that the chart would make up; set externalStore.adminSecret to let it, or createSecrets=false and make the Secrets yourself" }}
{{- end }}
{{- if $v.resident.enabled }}
{{- if not $v.resident.run }}
{{- fail "resident.run: expected the name of a run, found none; set it" }}
{{- end }}
{{- if and (eq $v.role "federation") (not $v.resident.spec) }}
{{- fail "resident.spec: expected the spec of the run, found none; set it, e.g. {algorithm: fedccrl, dataset: styled-digits}" }}
{{- end }}
{{- end }}
{{- if and $v.networkPolicy.enabled $v.networkPolicy.runs (not $v.networkPolicy.apiServer) }}
{{- fail "networkPolicy.apiServer: expected the addresses of the API server (kubectl get endpoints kubernetes), found none; KFP's launcher cannot start without it" }}
{{- end }}
{{- if and $v.nightly.enabled $v.nightly.spec (not $v.nightly.baseline) (not $v.nightly.command) }}
{{- fail "nightly.baseline: expected the baseline of nightly.spec, found none; make it with `siloflow gate results.jsonl --baseline baseline.json --accept` and give it with --set-file nightly.baseline=baseline.json" }}
{{- end }}
{{- include "siloflow.validate.secrets" . }}
{{- end }}

{{- define "siloflow.validate.silos" -}}
{{- $names := dict }}
{{- $reserved := list "admin" "evaluator" "global" "server" }}
{{- range $index, $silo := .Values.silos }}
{{- if has $silo.name $reserved }}
{{- fail (printf "silos[%d].name: expected another name than %s, found %q; rename it" $index (join ", " $reserved) $silo.name) }}
{{- end }}
{{- if hasKey $names $silo.name }}
{{- fail (printf "silos[%d].name: expected every name once, found %q twice; rename one" $index $silo.name) }}
{{- end }}
{{- $_ := set $names $silo.name true }}
{{- end }}
{{- $states := dict }}
{{- range include "siloflow.roles" . | fromYamlArray }}
{{- $value := .value }}
{{- with .pod.state }}
{{- $place := printf "%s/%s" .claim (.sub_path | default "") }}
{{- if hasKey $states $place }}
{{- fail (printf "%s.state: expected a volume of its own, found %q, which %s has too: each could read and change what is the other's; give one another" $value $place (index $states $place)) }}
{{- end }}
{{- $_ := set $states $place $value }}
{{- end }}
{{- if and .pod.data .pod.state }}
{{- if eq (.pod.data.path | default "/data") (.pod.state.path | default "/state") }}
{{- fail (printf "%s.state.path: expected another path than that of data, found %q for both; set one" .value (.pod.data.path | default "/data")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "siloflow.validate.siloRole" -}}
{{- $v := .Values }}
{{- if ne (len $v.silos) 1 }}
{{- fail (printf "silos: expected the one silo that this release is, found %d; leave the others out, or set role=federation" (len $v.silos)) }}
{{- end }}
{{- if not $v.store }}
{{- fail "store: expected the address of the federation's store, found none; ask who runs it" }}
{{- end }}
{{- if $v.embeddedStore.enabled }}
{{- fail "embeddedStore.enabled: expected false with role=silo, whose store is elsewhere" }}
{{- end }}
{{- if $v.createSecrets }}
{{- fail "createSecrets: expected false with role=silo: only who runs the store can make keys for it; get yours and put them into the Secret that silos[0].secret names" }}
{{- end }}
{{- range $key := list "pipelineUpload" "nightly" }}
{{- if (index $v $key).enabled }}
{{- fail (printf "%s.enabled: expected false with role=silo; it belongs to the federation's release" $key) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "siloflow.validate.embedded" -}}
{{- $v := .Values }}
{{- $host := include "siloflow.storeHost" . }}
{{- if $v.store }}
{{- $expected := printf "^s3://%s(\\.%s(\\.svc(\\.[a-z0-9.-]+)?)?)?:9000/%s(\\?|$)" (printf "%s-store" (include "siloflow.fullname" .)) .Release.Namespace $v.embeddedStore.prefix }}
{{- if not (regexMatch $expected $v.store) }}
{{- fail (printf "store: expected s3://%s:9000/%s, the embedded store, found %q; set embeddedStore.enabled=false to use another one" $host $v.embeddedStore.prefix $v.store) }}
{{- end }}
{{- if ne (not (contains "tls=false" $v.store)) $v.embeddedStore.tls.enabled }}
{{- fail (printf "store: expected ?tls=%t as in embeddedStore.tls.enabled, found %q; change one" $v.embeddedStore.tls.enabled $v.store) }}
{{- end }}
{{- end }}
{{- if and $v.embeddedStore.tls.enabled (not $v.embeddedStore.tls.secret) }}
{{- fail (printf "embeddedStore.tls.secret: expected a Secret with tls.crt and tls.key for %s, found none; make one" $host) }}
{{- end }}
{{- if and $v.embeddedStore.tls.enabled (not $v.ca_secret) }}
{{- fail "ca_secret: expected a Secret with ca.crt, who signed the certificate of the embedded store, found none; make one" }}
{{- end }}
{{- end }}

{{/* KFP names a volume after the Secret or claim in it, so the product refuses two of one name in a pod. (list $ value state data secret...) */}}
{{- define "siloflow.validate.distinct" -}}
{{- $names := dict }}
{{- $all := concat (slice . 4) (list (dig "claim" "" (index . 2 | default dict)) (dig "claim" "" (index . 3 | default dict)) ((index . 0).Values.ca_secret | default "")) }}
{{- range $name := without $all "" }}
{{- if hasKey $names $name }}
{{- fail (printf "%s: expected claims and Secrets of different names in a pod, found %q twice: KFP would give two volumes one name; rename one" (index $ 1) $name) }}
{{- end }}
{{- $_ := set $names $name true }}
{{- end }}
{{- end }}

{{/* Secrets: no two roles share one, and those that the chart does not make are there. */}}
{{- define "siloflow.validate.secrets" -}}
{{- $v := .Values }}
{{- $owner := dict (include "siloflow.adminSecret" . | default "-") "the store's administrator" }}
{{- range include "siloflow.roles" . | fromYamlArray }}
{{- if hasKey $owner .secret }}
{{- fail (printf "%s.secret: expected a Secret of its own, found %q, which %s has too: each could read and change what is the other's; give one another" .value .secret (index $owner .secret)) }}
{{- end }}
{{- $_ := set $owner .secret .value }}
{{- include "siloflow.validate.distinct" (list $ .value .pod.state .pod.data .secret) }}
{{- if not $v.createSecrets }}
{{- include "siloflow.requireSecret" (list $ (printf "%s.secret" .value) .secret "access_key" "secret_key") }}
{{- end }}
{{- end }}
{{- $evaluator := $v.evaluator | default dict }}
{{- include "siloflow.validate.distinct" (list . "evaluator.data" ($v.server | default dict).state $evaluator.data) }}
{{- with $v.ca_secret }}{{ include "siloflow.requireSecret" (list $ "ca_secret" . "ca.crt") }}{{ end }}
{{- if $v.embeddedStore.enabled }}
{{- with $v.embeddedStore.adminSecret }}{{ include "siloflow.requireSecret" (list $ "embeddedStore.adminSecret" . "access_key" "secret_key") }}{{ end }}
{{- if $v.embeddedStore.tls.enabled }}{{ include "siloflow.requireSecret" (list $ "embeddedStore.tls.secret" $v.embeddedStore.tls.secret "tls.crt" "tls.key") }}{{ end }}
{{- else }}
{{- with $v.externalStore.adminSecret }}{{ include "siloflow.requireSecret" (list $ "externalStore.adminSecret" . "access_key" "secret_key") }}{{ end }}
{{- end }}
{{- range $index, $name := $v.image.pull_secrets }}
{{- include "siloflow.requireSecret" (list $ (printf "image.pull_secrets[%d]" $index) $name) }}
{{- end }}
{{- end }}

{{/*
(list $ value name key...): fails if the Secret is not there. A namespace always has a ServiceAccount "default": where that is not
found, either nobody can look (helm template) or the namespace is yet to be made.
*/}}
{{- define "siloflow.requireSecret" -}}
{{- $root := index . 0 }}
{{- $keys := slice . 3 }}
{{- if lookup "v1" "ServiceAccount" $root.Release.Namespace "default" }}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace (index . 2) }}
{{- $place := printf "Secret %q in namespace %q" (index . 2) $root.Release.Namespace }}
{{- if not $found }}
{{- fail (printf "%s: expected %s, found none; make it first%s" (index . 1) $place (ternary (printf ", with %s" (join " and " $keys)) "" (gt (len $keys) 0))) }}
{{- end }}
{{- range $keys }}
{{- if not (hasKey ($found.data | default dict) .) }}
{{- fail (printf "%s: expected %s to hold %s, found no such key; add it" (index $ 1) $place .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
