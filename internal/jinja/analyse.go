package jinja

import "slices"

// LoopsOverContent reports whether the template loops over the content of a message, and so wants contents as lists of
// parts. Like vLLM's detection (vllm/renderers/hf.py) it looks at loops over the content of a variable of a loop over
// messages, or over a variable that was given messages, ignoring filters, tests and slices.
func (t *Template) LoopsOverContent() bool {
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		for _, set := range t.sets {
			if len(set.names) == 1 && refers(set.value, lists[i], "") && !slices.Contains(lists, set.names[0]) {
				lists = append(lists, set.names[0])
			}
		}
	}
	var items []string
	for _, l := range t.loops {
		for _, list := range lists {
			if refers(l.over, list, "") && len(l.names) == 1 {
				items = append(items, l.names[0])
			}
		}
	}
	return t.loopsOver(items)
}

// LoopsOverContentOf is LoopsOverContent for variables of these names, whatever they hold, as in SGLang's detection
// (sglang/srt/parser/jinja_template_utils.py).
func (t *Template) LoopsOverContentOf(names ...string) bool { return t.loopsOver(names) }

func (t *Template) loopsOver(names []string) bool {
	for _, l := range t.loops {
		for _, name := range names {
			if refers(l.over, name, "content") {
				return true
			}
		}
	}
	return false
}

// refers reports whether an expression is the variable, or its element of the key, or a filter, test or slice of that.
func refers(e expr, name, key string) bool {
	switch e := e.(type) {
	case *filterNode:
		return e.of != nil && refers(e.of, name, key)
	case *testExpr:
		return refers(e.of, name, key)
	case *sliceExpr:
		return refers(e.of, name, key)
	case *nameExpr:
		return key == "" && e.name == name
	case *attrExpr:
		return key != "" && e.name == key && refersTo(e.of, name)
	case *indexExpr:
		c, ok := e.index.(*constExpr)
		return key != "" && ok && c.value.kind == text && c.value.str == key && refersTo(e.of, name)
	}
	return false
}

func refersTo(e expr, name string) bool {
	n, ok := e.(*nameExpr)
	return ok && n.name == name
}
