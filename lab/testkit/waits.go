package testkit

// Waits is embedded by a test's http1.Sink that no loop writes to.
type Waits struct{}

func (Waits) Start(string)           {}
func (Waits) Polls() bool            { return false }
func (Waits) TryWrite([]byte) error  { panic("no loop writes to it") }
func (Waits) TryFlush() error        { panic("no loop writes to it") }
func (Waits) OnWritable(func()) bool { panic("no loop writes to it") }
