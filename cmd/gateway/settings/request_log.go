package settings

// RequestLog is what the line of a request says beside what it always does.
type RequestLog struct {
	Blocks  bool `setting:"log-blocks"`
	Routing bool `setting:"log-routing"`
}

// RequestLogGroup is the table that fills [RequestLog].
func RequestLogGroup() Group {
	return Group{Title: "Request log", Settings: []Setting{
		{
			Name: "log-blocks", Kind: Bool, Default: "false",
			Help: "Name the 512-token blocks of each prompt in its log line, 8 letters a block, so that gateway load --from-log can make a trace of the log. " +
				"A name says only that two prompts of one run were the same up to there: it is under a key that is drawn at the start and kept nowhere.",
		},
		{
			Name: "log-routing", Kind: Bool, Default: "false",
			Help: "Name in each request's log line the candidates for its workers, 64 of each leg at most, with each term of their cost, and what was " +
				"predicted to be cached beside what was. It is what routing in nvext.extra_fields shows a client. Lines grow by about 200 bytes a candidate.",
		},
	}}
}
