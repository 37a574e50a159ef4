package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rebuilt is the value that encoding/json would make of n.
func rebuilt(t *testing.T, tree *Tree, n Node) any {
	switch tree.Kind(n) {
	case '{':
		all := map[string]any{}
		for m := range tree.All(n) {
			if tree.Kind(m) != 'n' && tree.Twice == NoNode {
				at := tree.Get(n, tree.Key(m))
				require.True(t, at == m || tree.Twice != NoNode, "%s", tree.Path(m))
			}
			all[tree.Key(m)] = rebuilt(t, tree, m)
		}
		return all
	case '[':
		all := []any{}
		for m := range tree.All(n) {
			all = append(all, rebuilt(t, tree, m))
		}
		return all
	case '"':
		return tree.Text(n)
	}
	var v any
	require.NoError(t, json.Unmarshal([]byte(tree.Raw(n)), &v))
	return v
}

func FuzzTree(f *testing.F) {
	for _, body := range []string{
		`{"a":[1,-2.5e3,true,null,"x\n\u00e9\ud83d\ude00",{"b":{}}],"\u0061c":[[],[[]]],"a":2}`, ` "x" `, `[[1,2,3],{"a":{"b":[{}]}}]`, "\ufeff{}",
		`{"a":1,}`, "{\"a\":\"\xff\"}", `["\ud800"]`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var tree Tree
		defer tree.Release()
		if err := tree.Parse(body, nil); err != nil {
			require.True(t, err.(*Error).Status == 400 && json.Valid(err.(*Error).Append(nil, "")))
			return
		}
		var want any
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(string(body), "\ufeff")), &want), "accepted %q", body)
		require.Equal(t, want, rebuilt(t, &tree, 0))
		var flat Tree
		require.NoError(t, flat.Parse(body, func(key []byte) bool { return string(key) == "a" }))
		require.Equal(t, tree.Raw(0), flat.Raw(0))
	})
}

func TestTree(t *testing.T) {
	var tree Tree
	require.NoError(t, tree.Parse([]byte(`{"m":[{"role":"u"},{"x":{"deep":[0,{"y z":1}]}}],"m\u0032":null,"o":{"k":1},"o2":{"k":1,"k":2}}`),
		func(key []byte) bool { return string(key) == "o" }))
	deep := tree.Get(tree.Get(tree.Next(tree.First(tree.Get(0, "m"))), "x"), "deep")
	assert.Equal(t, "m[1].x.deep[1].y z", tree.Path(tree.First(tree.Next(tree.First(deep)))))
	assert.Equal(t, []Node{NoNode, NoNode, NoNode}, []Node{tree.Get(0, "m2"), tree.First(tree.Get(0, "o")), tree.Get(NoNode, "x")})
	assert.Equal(t, `{"k":1}`, tree.Raw(tree.Get(0, "o")))
	assert.Equal(t, byte('n'), tree.Kind(NoNode))
	assert.Empty(t, tree.Raw(NoNode)+tree.Quoted(0)+tree.Text(0)+tree.Path(0))
	assert.Equal(t, NoNode, tree.Twice)
	assert.Equal(t, "1", tree.Raw(tree.Get(tree.Get(0, "o2"), "k")), "the first counts")
	assert.Equal(t, "o2.k", tree.Path(tree.Twice))

	for body, want := range map[string]string{
		strings.Repeat("[", 200):                    "nested too deeply",
		"[" + strings.Repeat("[],", maxNodes) + "]": fmt.Sprintf("more than %d values", maxNodes),
		`{"a":01}`:         "bad number",
		"{\"a\":\"\xff\"}": "not valid UTF-8 at byte 6",
		``:                 "unexpected end",
	} {
		assert.ErrorContains(t, tree.Parse([]byte(body), nil), want)
	}
}
