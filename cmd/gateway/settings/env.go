package settings

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// environment is what the environment says.
type environment struct {
	tandem, dyn []assignment
	config      string   // TANDEM_CONFIG
	unknown     []string // DYN_ variables that no command knows
}

// serviceLink matches the variables that Kubernetes puts into every container of a namespace for a Service whose name
// begins with "tandem" or "dyn". No user set them, so they are not refused. The short form, TANDEM_PORT=tcp://…, is
// recognised by its value.
var serviceLink = regexp.MustCompile(`^(TANDEM|DYN)_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)

// deployment matches the variables that deploy/compose reads: an environment
// that names its images must not keep the gateway from starting.
var deployment = regexp.MustCompile(`^TANDEM_([A-Z]+_)?IMAGE$`)

// readEnviron reads the variables that begin with our two prefixes, in the order
// of their names, so that the same environment always gives the same errors.
func (s *Set) readEnviron(environ []string) (env environment, problems []error) {
	environ = slices.Clone(environ)
	slices.SortStableFunc(environ, func(a, b string) int {
		ka, _, _ := strings.Cut(a, "=")
		kb, _, _ := strings.Cut(b, "=")
		return cmp.Compare(ka, kb)
	})
	for _, entry := range environ {
		key, text, _ := strings.Cut(entry, "=")
		if text == "" {
			continue
		}
		if suffix, ok := strings.CutPrefix(key, tandemPrefix); ok {
			a, err := s.readTandem(key, suffix, text, &env)
			if err != nil {
				problems = append(problems, &setting.Error{Name: setting.Clip(key), Err: err})
			}
			if a != nil {
				env.tandem = append(env.tandem, *a)
			}
		}
		if name := dynamoServers[key]; name != "" && s.fromEnv(envSuffix(name)) != nil && !linked(key, text) {
			env.unknown = append(env.unknown, key+" (here "+tandemPrefix+envSuffix(name)+")")
		}
		if suffix, ok := strings.CutPrefix(key, dynPrefix); ok {
			switch row := s.fromEnv(suffix); {
			case row != nil:
				env.dyn = append(env.dyn, assign(row, kebab(suffix), key, "env "+key, text))
			case s.elsewhere(kebab(suffix)), linked(key, text):
			case protective(suffix, text):
				problems = append(problems, &setting.Error{Name: setting.Clip(key), Err: errProtective})
			default:
				env.unknown = append(env.unknown, s.guess(key, suffix))
			}
		}
	}
	return env, problems
}

// dynamoServers are variables of Dynamo without a prefix, and the settings that take their place. They are not read: another
// program's etcd is not joined by accident.
var dynamoServers = map[string]string{"ETCD_ENDPOINTS": "etcd-endpoints", "NATS_SERVER": "nats-url"}

// readTandem reads one TANDEM_ variable: this command's, another command's or unknown.
func (s *Set) readTandem(key, suffix, text string, env *environment) (*assignment, error) {
	if row := s.fromEnv(suffix); row != nil {
		a := assign(row, kebab(suffix), key, "env "+key, text)
		return &a, nil
	}
	switch {
	case suffix == envSuffix(configName):
		env.config = text
		return nil, nil
	case envSuffix(kebab(suffix)) == suffix && s.elsewhere(kebab(suffix)), linked(key, text), deployment.MatchString(key):
		return nil, nil
	}
	return nil, unknown(kebab(suffix), s.names(), func(n string) string { return tandemPrefix + envSuffix(n) })
}

// protection matches the names of DYN_ variables by which a gateway of Dynamo is
// secured: TLS, certificates, keys, who may ask, what clients may not use.
var protection = regexp.MustCompile(`(^|_)(M?TLS|SSL|CERTS?|KEYS?|AUTH|JWT|OIDC|SECRETS?|PASSWORDS?|CREDENTIALS?|TOKEN(_FILE|_PATH)?$)(_|$)|^DISABLE_FRONTEND_`)

// errProtective refuses to start without what was asked for.
var errProtective = errors.New("there is no such setting here, and without it the gateway would run less protected than was asked for; unset it, and see to that protection otherwise")

// protective reports whether a DYN_ variable that no command knows asks for
// protection. Passed over, the gateway would serve without it and look well.
func protective(suffix, text string) bool {
	off := slices.Contains([]string{"0", "false", "no", "off"}, strings.ToLower(text))
	return protection.MatchString(suffix) && !off
}

// guess names an unknown variable, with the nearest that is known.
func (s *Set) guess(key, suffix string) string {
	if near := setting.Nearest(kebab(suffix), s.names()[1:]); near != "" { // the first is the file's, which has no DYN_ form
		return setting.Clip(key) + " (the nearest is " + dynPrefix + envSuffix(near) + ")"
	}
	return setting.Clip(key)
}

// fromEnv finds the row of a variable's name without its prefix, which is upper case.
func (s *Set) fromEnv(suffix string) *setting.Setting {
	if envSuffix(suffix) != suffix {
		return nil
	}
	return s.byName[kebab(suffix)]
}

// linked reports whether Kubernetes made the variable.
func linked(key, text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return serviceLink.MatchString(key) ||
		strings.HasSuffix(key, "_PORT") && ok && slices.Contains([]string{"tcp", "udp", "sctp"}, scheme)
}
