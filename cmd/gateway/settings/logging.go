package settings

// Logging is what is written to standard error.
type Logging struct {
	Level  string `setting:"log-level"`
	Format string `setting:"log-format"`
}

// LoggingGroup is the table that fills [Logging].
func LoggingGroup() Group {
	return Group{Title: "Logging", Settings: []Setting{
		{
			Name: "log-level", Kind: String, Default: "info",
			OneOf: []Choice{
				{"debug", "also every candidate's cost at every choice; several lines a request"},
				{"info", "one line a request, and what changes"},
				{"warn", "what needs a look"},
				{"error", "what failed"},
			},
			Help: "Least severe message that is logged. No level logs prompts or answers.",
		},
		{
			Name: "log-format", Kind: String, Default: "text",
			OneOf: []Choice{
				{"text", "key=value, for people"},
				{"json", "an object a line, for collectors"},
			},
			Help: "Form of a log line.",
		},
	}}
}
