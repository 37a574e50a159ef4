package settings

// Gateway is every setting of the gateway, by group. A set of [GatewayGroups]
// fills it. Commands that need only some groups compose those and fill their
// structs, beside fields of their own:
//
//	var s struct {
//		Discovery settings.Discovery
//		Logging   settings.Logging
//		Role      string `setting:"role"`
//	}
type Gateway struct {
	HTTP      HTTP
	Admin     Admin
	Router    Router
	Queue     Queue
	Faults    Faults
	Discovery Discovery
	KVEvents  KVEvents
	KVStream  KVStream
	Workers   Workers
	Remote    RemoteIndex
	Logging   Logging
	Requests  RequestLog
	Metrics   Metrics
}

// Choices are the names that other packages register and settings select from.
type Choices struct {
	RouterModes   []Choice // the routing policies; "kv" is among them
	QueuePolicies []Choice // the queue's orders; "fcfs" is among them
}

// GatewayGroups returns the whole table of the gateway.
func GatewayGroups(c Choices) []Group {
	return []Group{
		HTTPGroup(),
		AdminGroup(),
		RouterGroup(c.RouterModes),
		QueueGroup(c.QueuePolicies),
		FaultsGroup(),
		DiscoveryGroup(),
		KVEventsGroup(),
		KVStreamGroup(),
		WorkersGroup(),
		RemoteIndexGroup(),
		LoggingGroup(),
		RequestLogGroup(),
		MetricsGroup(),
	}
}
