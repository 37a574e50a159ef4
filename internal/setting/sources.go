package setting

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// level is where a value comes from. A lower one wins.
type level uint8

const (
	fromFlag level = iota
	fromTandem
	fromDyn
	fromFile
	levels
)

// entry is one place where a user set a value.
type entry struct {
	row    *Setting
	name   string // as it was written: the name or an older one
	where  string // for errors: "flag --x", "gateway.yaml:12 x"
	source string // for Print: "flag", "file gateway.yaml:12"
	value  any
	err    error // why the value was refused, if it was
}

// parsed is a text that a user gave for the row under name.
func parsed(row *Setting, name, where, source, text string) entry {
	v, err := row.Parse(text)
	return entry{row, name, where, source, v, err}
}

// reading is what all sources hold.
type reading struct {
	*Set
	entries  [levels][]entry
	problems []error
	rest     []string // what on the command line is no flag
	asked    *Asked   // nil unless help was requested
	unknown  []string // DYN_ variables that no command has

	file, fileFrom string // the file's path, and what named it
}

func (r *reading) refuse(where string, err error) {
	r.problems = append(r.problems, &Error{Name: where, Err: err})
}

// readArgs reads --x=v, --x v, and for a switch --x, --x=v and --no-x. Flags and other arguments may be mixed; after
// "--" nothing is a flag.
func (r *reading) readArgs(args []string) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			r.rest = append(r.rest, args...)
			return
		}
		if len(arg) < 2 || arg[0] != '-' {
			r.rest = append(r.rest, arg)
			continue
		}
		flag, value, inline := strings.Cut(arg, "=")
		switch flag {
		case "--help-all":
			r.asked = &Asked{All: true}
			return
		case "-h", "--help":
			if !inline && len(args) > 0 {
				value = args[0]
			}
			r.asked = &Asked{Topic: value}
			return
		}
		taken, err := r.readFlag(flag, value, inline, args)
		if err != nil {
			r.refuse("flag "+Clip(flag), err)
		}
		args = args[taken:]
	}
}

// readFlag reads one flag. It returns how many of the arguments after it were its value: none or one.
func (r *reading) readFlag(flag, value string, inline bool, after []string) (taken int, err error) {
	name, long := strings.CutPrefix(flag, "--")
	row := r.byName[name]
	if positive, ok := strings.CutPrefix(name, "no-"); row == nil && ok && r.byName[positive] != nil && r.byName[positive].Switch() {
		if inline {
			return 0, fmt.Errorf("takes no value: write --%s=%s", positive, Clip(value))
		}
		name, row, value, inline = positive, r.byName[positive], "false", true
	}
	switch {
	case !long || row == nil && name != configName:
		return 0, unknown(strings.TrimLeft(flag, "-"), r.names(), func(n string) string { return "--" + n })
	case inline:
	case row != nil && row.Switch():
		if len(after) > 0 && (after[0] == "true" || after[0] == "false") {
			return 1, fmt.Errorf("is a switch: write --%s=%s", name, after[0])
		}
		value = "true"
	case len(after) == 0 || strings.HasPrefix(after[0], "--"):
		return 0, errors.New("a value is missing")
	default:
		value, taken = after[0], 1
	}
	switch {
	case row != nil:
		r.setFlag(parsed(row, name, "flag "+flag, "flag", value))
	case value == "":
		return taken, errors.New("a file's name is missing")
	default:
		r.file, r.fileFrom = value, "flag --"+configName
	}
	return taken, nil
}

// setFlag records a flag over an earlier one of the same name; a list adds to it. A value that was refused stays, so
// that no mistake is covered up.
func (r *reading) setFlag(g entry) {
	i := slices.IndexFunc(r.entries[fromFlag], func(e entry) bool { return e.name == g.name })
	if i < 0 {
		r.entries[fromFlag] = append(r.entries[fromFlag], g)
		return
	}
	earlier := &r.entries[fromFlag][i]
	if earlier.err != nil {
		return
	}
	if items, ok := g.value.([]string); ok && g.err == nil {
		g.value = append(slices.Clone(earlier.value.([]string)), items...)
		g.err = g.row.Check(g.value)
	}
	*earlier = g
}

var (
	// serviceLink matches the variables that Kubernetes puts into every container of a namespace for a Service whose
	// name begins with "tandem" or "dyn"; [linked] recognises the short form, TANDEM_PORT=tcp://…, by its value.
	serviceLink = regexp.MustCompile(`^(TANDEM|DYN)_([A-Z0-9_]+_)?` +
		`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)
	shortLink = regexp.MustCompile(`_PORT=(tcp|udp|sctp)://`)

	// deployment matches the variables that deploy/compose reads.
	deployment = regexp.MustCompile(`^TANDEM_([A-Z]+_)?IMAGE$`)

	// protection matches the names of DYN_ variables that secure a gateway of Dynamo. Ignored, this gateway would
	// serve without that protection and look well.
	protection = regexp.MustCompile(`(^|_)(M?TLS|SSL|CERTS?|KEYS?|AUTH|JWT|OIDC|SECRETS?|PASSWORDS?|CREDENTIALS?|` +
		`TOKEN(_FILE|_PATH)?$)(_|$)|^DISABLE_FRONTEND_`)
	off = []string{"0", "false", "no", "off"}
)

var errProtective = errors.New("there is no such setting here, and without it the gateway would run less protected than was asked for; " +
	"unset it, and see to that protection otherwise")

// dynamoServers are variables of Dynamo without a prefix, and the settings that take their place. They are not read:
// another program's etcd is not joined by accident.
var dynamoServers = map[string]string{"ETCD_ENDPOINTS": "etcd-endpoints", "NATS_SERVER": "nats-url"}

// readEnviron reads the variables in the order of their names, so that errors are the same each time.
func (r *reading) readEnviron(environ []string) {
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		key, text, _ := strings.Cut(entry, "=")
		suffix, tandem := strings.CutPrefix(key, tandemPrefix)
		if !tandem {
			suffix, _ = strings.CutPrefix(key, dynPrefix)
		}
		name := kebab(suffix)
		exact := envSuffix(name) == suffix
		server := r.byName[dynamoServers[key]]
		switch {
		case text == "" || serviceLink.MatchString(key) || shortLink.MatchString(entry):
		case server != nil:
			r.unknown = append(r.unknown, key+" (here "+tandemPrefix+envSuffix(server.Name)+")")
		case suffix == key:
		case exact && r.byName[name] != nil:
			l := fromDyn
			if tandem {
				l = fromTandem
			}
			r.entries[l] = append(r.entries[l], parsed(r.byName[name], name, key, "env "+key, text))
		case exact && slices.Contains(r.others, name):
		case tandem && suffix == envSuffix(configName):
			if r.fileFrom == "" {
				r.file, r.fileFrom = text, key
			}
		case tandem && deployment.MatchString(key):
		case tandem:
			r.refuse(Clip(key), unknown(name, r.names(), func(n string) string { return tandemPrefix + envSuffix(n) }))
		case protection.MatchString(suffix) && !slices.Contains(off, strings.ToLower(text)):
			r.refuse(Clip(key), errProtective)
		default:
			key = Clip(key)
			if near := Nearest(name, r.names()[1:]); near != "" { // the first is the file's, which has no DYN_ form
				key += " (the nearest is " + dynPrefix + envSuffix(near) + ")"
			}
			r.unknown = append(r.unknown, key)
		}
	}
}

// readFile reads the YAML file: one mapping with a key for each setting.
func (r *reading) readFile(read func(string) ([]byte, error)) {
	data, err := read(r.file)
	if err != nil {
		r.refuse(r.fileFrom, err)
		return
	}
	doc, err := Parse(Clip(r.file), data)
	switch {
	case err != nil:
		r.problems = append(r.problems, err)
		return
	case doc.Root == nil:
		return
	case doc.Root.Kind != yaml.MappingNode:
		r.problems = append(r.problems, doc.Errorf("", "settings are a mapping, as router-mode: kv; this is %s", Kind(doc.Root)))
		return
	}
	entries, err := doc.Entries(doc.Root, "")
	if err != nil {
		r.problems = append(r.problems, err)
	}
	for _, e := range entries {
		g := entry{name: strings.ReplaceAll(e.Key, "_", "-"), source: fmt.Sprintf("file %s:%d", doc.File, e.Line)}
		g.where = strings.TrimPrefix(g.source, "file ") + " " + e.Path
		g.row = r.byName[g.name]
		switch {
		case g.row != nil:
			g.value, g.err = readValue(g.row, e.Value)
			r.entries[fromFile] = append(r.entries[fromFile], g)
		case g.name == configName:
			r.refuse(g.where, errors.New("a file cannot name another"))
		case !slices.Contains(r.others, g.name):
			r.refuse(g.where, unknown(g.name, r.names()[1:], func(n string) string { return n }))
		}
	}
}

// readValue reads the value of a key: a text, or for a list a sequence too.
func readValue(row *Setting, value *yaml.Node) (any, error) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case IsNull(value):
		return nil, errNoValue
	case value.Kind == yaml.ScalarNode:
		return row.Parse(value.Value)
	case value.Kind != yaml.SequenceNode || !row.Several():
		return nil, fmt.Errorf("takes %s, not %s", row.Expected(), Kind(value))
	}
	items := []string{}
	for i, item := range value.Content {
		switch {
		case item.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("item %d is %s, not a value", i+1, Kind(item))
		case IsNull(item):
			return nil, fmt.Errorf("item %d %w", i+1, errNoValue)
		}
		items = append(items, item.Value)
	}
	return items, row.Check(items)
}

// errNoValue refuses a key with nothing after it, which is more often an oversight than intended.
var errNoValue = errors.New(`has no value: leave the key out for the default, or write ""`)
