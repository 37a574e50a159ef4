package discovery
import ("testing";"time";"context"; clientv3 "go.etcd.io/etcd/client/v3")
func TestCloseTime(t *testing.T) {
	for _, mode := range []string{"plain","stopfirst","conc"} {
	e, err := StartEtcd(EmbeddedEtcdConfig{}); if err != nil { t.Fatal(err) }
	c, _ := Dial([]string{e.URL()})
	ctx, cancel := context.WithCancel(t.Context())
	g, err := c.Grant(ctx, 10); if err != nil { t.Fatal(err) }
	ka, _ := c.KeepAlive(ctx, g.ID)
	<-ka
	w := c.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-w
	b := time.Now()
	switch mode {
	case "stopfirst": e.etcd.Server.Stop()
	case "conc": go e.etcd.Server.Stop()
	}
	t.Log(mode, "stopped", time.Since(b))
	e.Close()
	t.Log(mode, time.Since(b))
	cancel()
	c.Close()
	}
}
