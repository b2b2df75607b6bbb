{{/*
The labels of an object; takes (dict "root" $ "component" NAME), component may be "".
Names of objects are fixed, not the release's: edl itself asks for ServiceAccounts edl-master and
edl-replica, and for classes edl-high, edl-low and edl-master.
*/}}
{{- define "edl.labels" -}}
app.kubernetes.io/name: edl
app.kubernetes.io/part-of: edl
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/*
The name of the scheduler's rights in the whole cluster, which other releases may have as well.
*/}}
{{- define "edl.scheduler.clusterRole" -}}
edl-scheduler{{ if ne .Release.Namespace "edl" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/*
A RoleBinding of a role to subjects; takes (dict "root" $ "role" NAME "component" NAME "subjects" LIST).
*/}}
{{- define "edl.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "edl.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  {{- toYaml .subjects | nindent 2 }}
{{- end }}

{{/*
A ClusterRoleBinding of the ClusterRole of its name; takes what edl.binding takes.
*/}}
{{- define "edl.clusterBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .role }}
  labels:
    {{- include "edl.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .role }}
subjects:
  {{- toYaml .subjects | nindent 2 }}
{{- end }}

{{/*
"yes" for an object of the whole cluster that somebody else has brought: it is left alone, since Helm
would refuse to take it over. A release is known by its name and its namespace. Takes (dict "root" $
"api" VERSION "kind" KIND "name" NAME).
*/}}
{{- define "edl.foreign" -}}
{{- $found := lookup .api .kind "" .name }}
{{- if $found }}
{{- $by := dig "metadata" "annotations" (dict) $found }}
{{- $owner := list (get $by "meta.helm.sh/release-name") (get $by "meta.helm.sh/release-namespace") }}
{{- if ne (toJson $owner) (toJson (list .root.Release.Name .root.Release.Namespace)) }}yes{{ end }}
{{- end }}
{{- end }}
