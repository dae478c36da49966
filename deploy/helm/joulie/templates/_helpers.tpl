{{- define "joulie.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "joulie.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "joulie.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "joulie.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels that select the pods of a component: (list . "operator"). */}}
{{- define "joulie.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "joulie.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "joulie.labels" -}}
{{- $top := index . 0 -}}
{{ include "joulie.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: joulie
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Name of a component's objects: (list . "operator"). */}}
{{- define "joulie.component" -}}
{{- printf "%s-%s" (include "joulie.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{- define "joulie.image" -}}
{{ include "joulie.imageOf" (list . .Values.image) }}
{{- end }}

{{/* Reference of an image: (list . .Values.simulator.image). */}}
{{- define "joulie.imageOf" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 0).Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{/* Settings of a program as environment variables. Numbers keep all digits, maps become JSON. */}}
{{- define "joulie.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ $value | toJson | quote }}{{ end }}
{{- end }}
{{- end }}

{{- define "joulie.logging" -}}
- name: LOG_LEVEL
  value: {{ .Values.log.level | quote }}
- name: LOG_FORMAT
  value: {{ .Values.log.format | quote }}
{{- end }}

{{/* Whether plans are applied; labels of nodes and namespaces take precedence. */}}
{{- define "joulie.mode" -}}
- name: MODE
  value: {{ .Values.mode }}
{{- end }}

{{/* The node label of the power profile, which several programs read: the operator's setting. */}}
{{- define "joulie.profileLabel" -}}
{{- get .Values.operator.settings "POWER_PROFILE_LABEL" | default "joulie.io/power-profile" -}}
{{- end }}

{{/* What the user adds to a component, from its values. */}}
{{- define "joulie.extraEnv" -}}
{{- with .extraEnv }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "joulie.extraMounts" -}}
{{- with .extraVolumeMounts }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "joulie.extraVolumes" -}}
{{- with .extraVolumes }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Time that a pod serves after its endpoint is removed, for clients that have not noticed yet. */}}
{{- define "joulie.preStop" -}}
{{- if . }}
lifecycle:
  preStop:
    sleep: {seconds: {{ . }}}
{{- end }}
{{- end }}

{{- define "joulie.catalogue.env" -}}
{{- if .Values.hardwareCatalogue }}
- name: HARDWARE_CATALOG_PATH
  value: /etc/joulie/hardware/hardware.yaml
{{- end }}
{{- end }}

{{- define "joulie.catalogue.mount" -}}
{{- if .Values.hardwareCatalogue }}
- name: hardware
  mountPath: /etc/joulie/hardware
  readOnly: true
{{- end }}
{{- end }}

{{- define "joulie.catalogue.volume" -}}
{{- if .Values.hardwareCatalogue }}
- name: hardware
  configMap:
    name: {{ include "joulie.component" (list . "hardware") }}
{{- end }}
{{- end }}

{{/* A changed catalogue restarts the programs, which read it at start. */}}
{{- define "joulie.annotations" -}}
{{- $top := index . 0 -}}
{{- $own := dict -}}
{{- if $top.Values.hardwareCatalogue }}{{ $_ := set $own "checksum/hardware" (sha256sum $top.Values.hardwareCatalogue) }}{{ end }}
{{- with merge $own (index . 1) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "joulie.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "joulie.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "joulie.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{/* Scheduling constraints of a component's pods, from its values. */}}
{{- define "joulie.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "joulie.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" or empty: whether the steering mode needs this part. */}}
{{- define "joulie.extender.enabled" -}}
{{- if has .Values.steering.mode (list "extender" "both") }}true{{ end }}
{{- end }}

{{- define "joulie.admission.enabled" -}}
{{- if has .Values.steering.mode (list "admission" "both") }}true{{ end }}
{{- end }}

{{- define "joulie.extender.url" -}}
{{ if .Values.extender.tls.enabled }}https{{ else }}http{{ end }}://{{ include "joulie.component" (list . "extender") }}.{{ .Release.Namespace }}.svc:{{ .Values.extender.port }}
{{- end }}

{{- define "joulie.simulator.url" -}}
http://{{ include "joulie.component" (list . "simulator") }}.{{ .Release.Namespace }}.svc:18080
{{- end }}

{{/* "true" or empty: whether there is a second scheduler. The grid components always need one. */}}
{{- define "joulie.scheduler.enabled" -}}
{{- if or .Values.scheduler.enabled .Values.grid.enabled }}true{{ end }}
{{- end }}

{{- define "joulie.policyVersion" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- ternary "v1" "v1beta1" (or (.Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group)) (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version)) }}
{{- end }}

{{/* "true" or empty: whether the policy gates pods, else the webhook. v1beta1 is disabled in API servers by default. */}}
{{- define "joulie.grid.policy" -}}
{{- $known := or (.Capabilities.APIVersions.Has (printf "admissionregistration.k8s.io/%s/MutatingAdmissionPolicy" (include "joulie.policyVersion" .))) (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version) }}
{{- if and .Values.grid.enabled (or (eq .Values.grid.admission.mode "policy") (and (eq .Values.grid.admission.mode "auto") $known)) }}true{{ end }}
{{- end }}

{{- define "joulie.grid.webhook" -}}
{{- if and .Values.grid.enabled (not (include "joulie.grid.policy" .)) }}true{{ end }}
{{- end }}

{{- define "joulie.grid.kueue" -}}
{{- $served := or (.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta2") (.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta1") }}
{{- $wanted := toString .Values.grid.kueue }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $served) }}true{{ end }}
{{- end }}

{{/* Kinds of nodes with an agent of their own, as JSON, in order of precedence; cpu is every other node. */}}
{{- define "joulie.agent.kinds" -}}
{{- $kinds := list -}}
{{- $all := .Values.agent.kinds -}}
{{- range list "nvidia" "amd" -}}
{{- if (index $all .).enabled }}{{ $kinds = append $kinds . }}{{ end -}}
{{- end -}}
{{- if $all.cpu.enabled }}{{ $kinds = append $kinds "cpu" }}{{ end -}}
{{ $kinds | toJson }}
{{- end }}

{{/* Component of the agents of a kind. That of cpu has the name of the only DaemonSet of earlier charts. */}}
{{- define "joulie.agent.component" -}}
{{- if eq . "cpu" }}agent{{ else }}agent-{{ . }}{{ end -}}
{{- end }}

{{/* Names of all DaemonSets of agents: a node that changes its kind is handed over from one to another. */}}
{{- define "joulie.agent.daemonsets" -}}
{{- $names := list -}}
{{- range include "joulie.agent.kinds" . | fromJsonArray -}}
{{- $names = append $names (include "joulie.component" (list $ (include "joulie.agent.component" .))) -}}
{{- end -}}
{{ $names | toJson }}
{{- end }}

{{/*
Terms of the node affinity of a kind, as JSON: (list . "amd"). A node belongs to the first kind with an expression that
it meets: the expressions of earlier kinds are negated in each term, so that no node has two agents and none has none.
*/}}
{{- define "joulie.agent.terms" -}}
{{- $values := (index . 0).Values.agent -}}
{{- $kind := index . 1 -}}
{{- $opposite := dict "In" "NotIn" "NotIn" "In" "Exists" "DoesNotExist" "DoesNotExist" "Exists" -}}
{{- $earlier := list -}}
{{- $passed := false -}}
{{- range list "nvidia" "amd" "cpu" -}}
{{- if eq . $kind }}{{ $passed = true }}{{ end -}}
{{- if and (not $passed) (index $values.kinds .).enabled -}}
{{- range (index $values.kinds .).nodeExpressions -}}
{{- $earlier = append $earlier (merge (dict "operator" (get $opposite .operator)) .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $own := list -}}
{{- if eq $kind "cpu" -}}
{{- if $earlier }}{{ $own = list (dict "matchExpressions" $earlier) }}{{ end -}}
{{- else -}}
{{- range (index $values.kinds $kind).nodeExpressions -}}
{{- $own = append $own (dict "matchExpressions" (prepend $earlier .)) -}}
{{- end -}}
{{- end -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list) $values.affinity -}}
{{- $terms := $own -}}
{{- if and $required $own -}}
{{- /* Terms are OR-ed: each of the user's with each of the kind's. */}}
{{- $terms = list -}}
{{- range $theirs := $required -}}
{{- range $ours := $own -}}
{{- $all := concat (default (list) $theirs.matchExpressions) $ours.matchExpressions -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $all) $theirs) -}}
{{- end -}}
{{- end -}}
{{- else if $required -}}
{{- $terms = $required -}}
{{- end -}}
{{ $terms | toJson }}
{{- end }}

{{/* Affinity of the agents of a kind: (list . "amd"). */}}
{{- define "joulie.agent.affinity" -}}
{{- $top := index . 0 -}}
{{- $affinity := deepCopy $top.Values.agent.affinity -}}
{{- $terms := include "joulie.agent.terms" . | fromJsonArray -}}
{{- $selector := default dict $top.Values.agent.nodeSelector -}}
{{- if hasKey $selector "joulie.io/managed" -}}
{{- /* A node that is no longer managed keeps its agent until that has restored the original limits. */}}
{{- $managed := dict "key" "joulie.io/managed" "operator" "In" "values" (list (get $selector "joulie.io/managed")) -}}
{{- $pending := dict "key" "joulie.io/restore-pending" "operator" "Exists" -}}
{{- $all := list -}}
{{- range $term := default (list dict) $terms -}}
{{- range list $managed $pending -}}
{{- $all = append $all (merge (dict "matchExpressions" (append (default list $term.matchExpressions) .)) $term) -}}
{{- end -}}
{{- end -}}
{{- $terms = $all -}}
{{- end -}}
{{- if $terms -}}
{{- $node := merge (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) (get $affinity "nodeAffinity" | default dict) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- /* Two agents would undo each other's work: one starts when the other has left. */}}
{{- $others := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" (include "joulie.name" $top) "app.kubernetes.io/instance" $top.Release.Name) "matchExpressions" (list (dict "key" "app.kubernetes.io/component" "operator" "In" "values" (list "agent" "agent-nvidia" "agent-amd")))) -}}
{{- $anti := get $affinity "podAntiAffinity" | default dict -}}
{{- $_ := set $anti "requiredDuringSchedulingIgnoredDuringExecution" (append (get $anti "requiredDuringSchedulingIgnoredDuringExecution" | default list) $others) -}}
{{- $_ := set $affinity "podAntiAffinity" $anti -}}
{{ toYaml $affinity }}
{{- end }}

{{/* Names of schedulers that the release runs, as JSON. */}}
{{- define "joulie.scheduler.names" -}}
{{- $names := list -}}
{{- if include "joulie.scheduler.enabled" . }}{{ $names = append $names .Values.scheduler.name }}{{ end -}}
{{- if .Values.grid.enabled }}{{ $names = append $names "compute-gardener-scheduler" }}{{ end -}}
{{ $names | uniq | toJson }}
{{- end }}

{{/* Enabled components as JSON, for ServiceAccounts, NetworkPolicies and metrics. */}}
{{- define "joulie.components" -}}
{{- $on := list -}}
{{- if .Values.operator.enabled }}{{ $on = append $on "operator" }}{{ end -}}
{{- if .Values.agent.enabled }}{{ $on = append $on "agent" }}{{ end -}}
{{- if .Values.agentPool.enabled }}{{ $on = append $on "agent-pool" }}{{ end -}}
{{- if include "joulie.extender.enabled" . }}{{ $on = append $on "extender" }}{{ end -}}
{{- if .Values.simulator.enabled }}{{ $on = append $on "simulator" }}{{ end -}}
{{- if include "joulie.scheduler.enabled" . }}{{ $on = append $on "scheduler" }}{{ end -}}
{{- if .Values.grid.enabled }}{{ $on = append $on "grid" }}{{ end -}}
{{- if and .Values.grid.enabled .Values.grid.guard.enabled }}{{ $on = append $on "grid-guard" }}{{ end -}}
{{- if include "joulie.grid.webhook" . }}{{ $on = append $on "grid-webhook" }}{{ end -}}
{{- if include "joulie.accounting.enabled" . }}{{ $on = append $on "accounting" }}{{ end -}}
{{- if .Values.web.enabled }}{{ $on = append $on "web" }}{{ end -}}
{{- if .Values.cleanup.enabled }}{{ $on = append $on "cleanup" }}{{ end -}}
{{ $on | toJson }}
{{- end }}

{{/* As joulie.components, with the agents of each kind of node. */}}
{{- define "joulie.workloads" -}}
{{- $all := without (include "joulie.components" . | fromJsonArray) "agent" -}}
{{- if .Values.agent.enabled -}}
{{- range include "joulie.agent.kinds" . | fromJsonArray }}{{ $all = append $all (include "joulie.agent.component" .) }}{{ end -}}
{{- end -}}
{{ $all | toJson }}
{{- end }}
