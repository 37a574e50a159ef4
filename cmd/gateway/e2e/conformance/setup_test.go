//go:build engines

package conformance

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed all:env
var files embed.FS

// Cache returns the folder of builds that a machine makes once: ENGINES_CACHE, or a folder in the user's cache.
func Cache() (string, error) {
	if dir := os.Getenv("ENGINES_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "tandem", "engines"), err
}

// content is a file or folder whose content is part of a cached folder's name.
type content struct {
	fs.FS
	path string
}

// cached builds a folder of the cache, unless it exists. Its name has a hash of the sources.
func cached(cache, name string, build func(dir string) error, of ...content) (string, error) {
	sum := sha256.New()
	for _, s := range of {
		err := fs.WalkDir(s, s.path, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(s, path)
			sum.Write(text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	temp, err := os.MkdirTemp(cache, name+"-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := build(temp); err != nil {
		return "", err
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// setup builds what an engine of the kind needs, and the models for a tokenizer. It returns the folders of the scripts,
// of the engine and of the models. Progress is written to log.
func setup(ctx context.Context, kind, tokenizer string, log io.Writer) (scripts, folder, models string, err error) {
	cache, err := Cache()
	if err != nil {
		return "", "", "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", "", "", err
	}
	env, err := fs.Sub(files, "env")
	if err != nil {
		return "", "", "", err
	}
	if scripts, err = cached(cache, "scripts", func(dir string) error { return os.CopyFS(dir, env) }, content{env, "."}); err != nil {
		return "", "", "", err
	}
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(scripts, "setup.sh"), kind, cache)
	cmd.Stderr = log
	out, err := cmd.Output()
	if err != nil {
		return "", "", "", fmt.Errorf("setting up %s: %w", kind, err)
	}
	folder = strings.TrimSpace(string(out))
	models, err = cached(cache, "models", func(dir string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(folder, "v/bin/python"), filepath.Join(scripts, "models.py"), dir, tokenizer)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("writing the models: %w\n%s", err, tail(out))
		}
		return nil
	}, content{env, "models.py"}, content{os.DirFS(filepath.Dir(tokenizer)), filepath.Base(tokenizer)})
	return scripts, folder, models, err
}

// environment returns the variables with which an engine runs on a CPU without a network.
func environment(kind, scripts, folder string) []string {
	env := []string{"HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false"}
	if kind == "vllm" {
		// Logprobs in a forked engine hang in torch.compile without TORCHDYNAMO_DISABLE. The mode for developers has
		// /reset_prefix_cache.
		return append(env, "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "VLLM_NO_USAGE_STATS=1",
			"DO_NOT_TRACK=1", "TORCHDYNAMO_DISABLE=1", "VLLM_SERVER_DEV_MODE=1")
	}
	var disabled []string
	found, _ := filepath.Glob(filepath.Join(folder, "v/lib/python3*/site-packages/sglang/srt/models/*.py"))
	for _, f := range found {
		switch name := strings.TrimSuffix(filepath.Base(f), ".py"); name {
		case "qwen2", "llama", "registry", "utils", "__init__":
		default:
			disabled = append(disabled, name)
		}
	}
	return append(env, "PYTHONPATH="+scripts, "SGLANG_USE_CPU_ENGINE=1", "MC_FORCE_TCP=1", "SGLANG_HOST_IP=127.0.0.1",
		"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=40", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT=40",
		"SGLANG_DISABLED_MODEL_ARCHS="+strings.Join(disabled, ","))
}
