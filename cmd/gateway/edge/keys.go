package edge

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tandem-pd/tandem/internal/auth"
)

// keyring is the keys of clients and operators, which share none.
type keyring struct{ client, admin auth.Keys }

// readKeyring reads the key files. Its error wraps an *auth.FileError.
func readKeyring(cfg Config) (*keyring, error) {
	client, err := auth.ReadKeys(cfg.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("api-key-file: %w", err)
	}
	admin, err := auth.ReadKeys(cfg.AdminKeyFile)
	for _, digest := range admin {
		if client.Hold(digest) {
			err = &auth.FileError{Path: cfg.AdminKeyFile,
				Err: errors.New("it shares a key with api-key-file; a key is a client's or an operator's")}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("admin-key-file: %w", err)
	}
	return &keyring{client, admin}, nil
}

// ReloadKeys reads the key files again. On an error, which wraps an *auth.FileError, the keys stay unchanged.
// Admitted requests are not checked again.
func (s *Server) ReloadKeys() error {
	if s.cfg.APIKeyFile == "" && s.cfg.AdminKeyFile == "" {
		return nil
	}
	ring, err := readKeyring(s.cfg)
	if err != nil {
		return err
	}
	s.keys.Store(ring)
	s.log.Info("keys read", slog.Int("client_keys", len(ring.client)), slog.Int("admin_keys", len(ring.admin)))
	return nil
}
