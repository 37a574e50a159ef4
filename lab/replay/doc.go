// Package replay puts load on an OpenAI endpoint and measures the answers.
//
// A [Workload] is a list of requests with the times to send them at, read from a trace ([ReadTrace]) or made up
// ([Generator]). Its prompts are spans of tokens named by ids, as Mooncake's traces have them: a [Prompter] turns equal
// ids into equal tokens, so that what the trace's requests shared the replayed ones share too, and a prefix cache sees
// the same hits.
//
// A [Replay] is open loop: every request goes out at its time, whatever is still in flight, so that a slow endpoint
// cannot slow its own load down. All times count from when a request should have been sent. How late the generator
// itself was is measured and reported, because a client short of CPU looks like a slow server.
//
// The result is a [Report]: a [Sample] a request, and the [Summary] that [Summarize] computes from them, exactly, by
// sorting. They do not depend on HTTP, so that a simulation can fill and print them too.
package replay
