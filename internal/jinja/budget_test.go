package jinja

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Every filter, method, test and operator pays for the text or the list that it reads: in a loop each ends with the
// budget, or is named here as one whose work does not grow with the value.
func TestEveryOperationPays(t *testing.T) {
	const size = 1 << 20
	list := make([]Value, 50_000)
	dict := NewDict(len(list))
	for i := range list {
		list[i] = Int(1)
		dict.add(Int(int64(i)), Int(1))
	}
	list[len(list)-1] = Int(7)
	vars := map[string]Value{"list": List(list), "list2": List(slices.Clone(list)), "map": Map(dict), "map2": Map(dict.Clone())}
	for name, of := range map[string]string{"text": "a", "space": " ", "digit": "1", "capital": "A"} {
		vars[name], vars[name+"2"] = String(strings.Repeat(of, size)), String(strings.Repeat(of, size))
	}
	free := strings.Split("|default,|d,|safe,|string,|abs,is defined,is undefined,is none,is boolean,is true,is false,is integer,is float,is number,"+
		"is string,is mapping,is sequence,is iterable,is callable,is odd,is even,is divisibleby", ",")
	unsafe := strings.Fields("pop update clear popitem setdefault append extend insert remove reverse sort")
	given := map[string]string{ // other than (); of tests, other than none
		"|replace": "('b','c')", ".replace": "('b','c')", "|map": "('int')", "|select": "('eq',2)", "|reject": "('eq',2)", "|selectattr": "('x')",
		"|rejectattr": "('x')", ".startswith": "(text2)", ".endswith": "(text2)", ".find": "('b')", ".rfind": "('b')",
		".index": "('a'*9 ~ text2[9:])",
		".split": "('b')", ".rsplit": "('b')", ".partition": "('b')", ".count": "('b')", ".join": "(list|map('string'))",
		".removeprefix": "(text2)", ".removesuffix": "(text2)", ".get": "(-1)", "list.index": "(7)", "list.count": "(2)",
		"is sameas": "(text2)", "is in": "(list)", "is divisibleby": "(2)",
	}
	on := map[string]string{ // other than text
		"|items": "map", "|dictsort": "map", "|int": "digit", "|float": "digit", "|trim": "space", ".strip": "space", ".lstrip": "space",
		".rstrip":  "space",
		".isspace": "space", ".isdigit": "digit", ".isnumeric": "digit", ".isupper": "capital", "is upper": "capital", "is odd": "1",
		"is even":        "1",
		"is divisibleby": "1", "|abs": "1", "is in": "2",
	}
	for _, name := range strings.Fields("list first last join map select reject selectattr rejectattr sort unique sum min max reverse") {
		if name != "first" && name != "last" { // of a list they read one
			on["|"+name] = "list"
		}
	}
	var all []string
	add := func(of, op, name string) {
		key := op + name
		if v, ok := on[key]; ok {
			of = v
		}
		args, ok := given[of+key]
		if !ok {
			args, ok = given[key]
		}
		if !ok && strings.HasPrefix(op, ".") {
			args = "()"
		}
		all = append(all, of+" "+op+name+args)
	}
	for name := range filters {
		add("text", "|", name)
	}
	for of, methods := range map[string]map[string]method{"text": textMethods, "list": listMethods, "map": dictMethods} {
		for name := range methods {
			if of == "text" || !slices.Contains(unsafe, name) {
				add(of, ".", name)
			}
		}
	}
	for name := range tests {
		switch strings.Trim(name, "=!<>") {
		case "":
		case "eq", "equalto", "ne", "lt", "lessthan", "gt", "greaterthan", "le", "ge":
			for _, of := range []string{"text", "list", "map"} {
				if of != "map" || name == "eq" || name == "ne" || name == "equalto" {
					all = append(all, of+" is "+name+"("+of+"2)")
				}
			}
		default:
			add("text", "is ", name)
		}
	}
	for _, op := range strings.Fields("== != < <= > >= + ~") {
		all = append(all, "text "+op+" text2")
		if op != "~" {
			all = append(all, "list "+op+" list2")
		}
	}
	all = append(all, "text in text2", "'b' not in text", "2 in list", "-1 in map", "text in {text2: 1}", "text * 2", "list * 2",
		"'%s' % text", "text % ()",
		"text[5]", "text[1:5]", "text[::2]", "list[::2]", "list ~ ''", "map ~ ''", "dict(map)", "map[-1]", "(text2,) == (text,)",
		"map == map2", "{'a': 1}[text]",
		"[text, text2] | sort", "[text, text2] | unique", "[text, text2] | max", "list | tojson", "map | tojson", "namespace(map)",
		"{text: 1} | tojson")
	slices.Sort(all)
	for _, e := range slices.Compact(all) {
		tmpl, err := Parse("{% for i in range(2000) %}{% set y = " + e + " %}{% endfor %}")
		if err != nil {
			t.Errorf("%s: %v", e, err)
			continue
		}
		s := tmpl.begin(nil, maps.Clone(vars))
		s.steps, s.bytes = 100_000, 8<<20
		err = func() (err error) {
			defer func() { err = recovered(recover()) }()
			s.run(tmpl.body)
			return nil
		}()
		_, op, _ := strings.Cut(e, " ")
		op, _, _ = strings.Cut(op, "(")
		if free := slices.Contains(free, op); free && err != nil || !free && !errors.Is(err, ErrBudget) {
			t.Errorf("%s: %v", e, err)
		}
	}
}
