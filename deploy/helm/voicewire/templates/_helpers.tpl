{{- define "voicewire.name" -}}
{{- if contains "voicewire" .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-voicewire" (.Release.Name | trunc 40 | trimSuffix "-") }}
{{- end -}}
{{- end -}}

{{- define "voicewire.selector" -}}
app.kubernetes.io/name: voicewire
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "voicewire.labels" -}}
{{ include "voicewire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
