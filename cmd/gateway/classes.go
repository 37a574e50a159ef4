package main

import (
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/queue"
)

// readClasses reads the file of policy classes, if any.
func readClasses(cfg *queue.Config, r *setting.Resolved, p process) error {
	if cfg.ClassesFile == "" {
		return nil
	}
	data, err := p.readFile(cfg.ClassesFile)
	if err != nil {
		return r.Refuse("router-policy-config", err)
	}
	cfg.Classes, err = queue.ParseClasses(cfg.ClassesFile, data)
	return err
}
