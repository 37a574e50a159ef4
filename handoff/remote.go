package handoff

import (
	"context"
	"time"
)

// askRemote asks the index elsewhere, if there is one, what workers hold of the
// prompt. It stands where the prompt is hashed and nothing is booked; that nobody
// answers changes where a request goes and never whether it is served. A retry is
// chosen by what the first round was told.
func (f *Flow) askRemote(ctx context.Context, r *request) {
	if f.rooms.Remote == nil || r.ids == nil || len(r.hashes) == 0 {
		return // text is hashed for predictions alone
	}
	if computes, pool := f.computers(r); len(pool.Members) == 0 || computes.Blind() {
		return
	}
	began := time.Now()
	r.told, r.remote = f.rooms.Remote(ctx, r.call.Request.Model, r.card.blockSize, r.hashes)
	r.spent.asking = time.Since(began)
}
