package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Access is how etcd is reached over a network that others are on. The zero value is for one that is open.
type Access struct {
	User, Password string
	// Trust is the certificates of both sides, nil without TLS. With it endpoints without a scheme are reached over TLS.
	Trust http1.Trust
	// Log gets why TLS with a member fails, once for each reason; nil for none.
	Log *slog.Logger

	dial func(ctx context.Context, address string) (net.Conn, error) // nil for the machine's network
}

// fresh makes each handshake with the certificates of its moment.
type fresh struct {
	trust http1.Trust
	log   *slog.Logger

	mu     sync.Mutex
	failed string // what the log has last
}

var _ credentials.TransportCredentials = (*fresh)(nil)

// ClientHandshake implements [credentials.TransportCredentials].
func (f *fresh) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := f.now().ClientHandshake(ctx, authority, raw)
	if err != nil {
		err = f.trust.Explain(err)
	}
	f.note(authority, err)
	return c, info, err
}

// note logs an error that is another one than before.
func (f *fresh) note(member string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.failed = ""
	} else if text := err.Error(); text != f.failed && f.log != nil {
		f.failed = text
		f.log.Warn("TLS handshake with etcd failed", "member", member, "error", err)
	}
}

// ServerHandshake implements [credentials.TransportCredentials].
func (f *fresh) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements [credentials.TransportCredentials].
func (f *fresh) Info() credentials.ProtocolInfo { return f.now().Info() }

// Clone implements [credentials.TransportCredentials].
func (f *fresh) Clone() credentials.TransportCredentials { return &fresh{trust: f.trust, log: f.log} }

// OverrideServerName implements [credentials.TransportCredentials]. The name is always the member's.
func (f *fresh) OverrideServerName(string) error { return errors.New("the name is the member's") }

func (f *fresh) now() credentials.TransportCredentials { return credentials.NewTLS(f.trust.Client()) }

// Dial returns a client of the etcd at endpoints ("http://host:2379", "host:2379", or either with "user:password@" before the
// host, one pair in all). It does not wait for a connection, and looks for one again within 2 s whenever there is none (gRPC's
// own default grows to two minutes). A connection that has gone silent is given up after 13 s. It writes no logs of its own, and
// no password into errors. The caller closes it.
func Dial(endpoints []string, access Access) (*clientv3.Client, error) {
	endpoints, user, err := withoutUser(endpoints)
	secure := access.Trust != nil
	switch _, own := user.Password(); {
	case err != nil || access.User != "":
	case access.Password != "" && (user == nil || own):
		err = errors.New("with etcd-password-file, USER@ stands before the host")
	case access.Password != "":
		access.User = user.Username()
	case user != nil && !own:
		err = errors.New("USER@ needs etcd-password-file; without both, etcd can take the name of client-cert-file")
	}
	for _, e := range endpoints {
		if err == nil && secure && strings.HasPrefix(e, "http://") {
			err = fmt.Errorf("%s is reached without TLS, and certificates are listed for it: write https://", e)
		}
	}
	if err != nil {
		return nil, setting.Errorf("etcd-endpoints", "%w", err)
	}
	if access.User != "" {
		user = url.UserPassword(access.User, access.Password)
	}
	cfg := clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // the least that gRPC takes
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	if access.dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(access.dial))
	}
	if secure {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(&fresh{trust: access.Trust, log: access.Log}))
	}
	if user != nil {
		// With a name New would wait until etcd has answered. With a token it does not; etcd refuses this one at the first call,
		// and the client then asks for another by name and password.
		cfg.Token = "none"
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	if user != nil {
		c.Token, c.Username = "", user.Username()
		c.Password, _ = user.Password()
	}
	return c, nil
}

// withoutUser takes the user and password out of endpoints; user is nil for none.
func withoutUser(endpoints []string) (bare []string, user *url.Userinfo, err error) {
	for _, e := range endpoints {
		scheme, rest, found := strings.Cut(e, "://")
		if !found {
			scheme, rest = "", e
		}
		at := strings.LastIndexByte(rest, '@')
		if at < 0 {
			bare = append(bare, e)
			continue
		}
		u, err := url.Parse("etcd://" + rest)
		if err != nil || u.User == nil {
			return nil, nil, errors.New("what stands before the @ must be USER:PASSWORD, with / @ : ? # and % in it written as %2F, %40, …")
		}
		password, own := u.User.Password()
		switch {
		case u.User.Username() == "" || own && password == "":
			return nil, nil, errors.New("what stands before the @ must be USER:PASSWORD, or USER with etcd-password-file")
		case user != nil && *user != *u.User:
			return nil, nil, errors.New("the members of one cluster take the same USER:PASSWORD")
		}
		user = u.User
		if found {
			scheme += "://"
		}
		bare = append(bare, scheme+rest[at+1:])
	}
	return bare, user, nil
}
