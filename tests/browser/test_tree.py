"""What the map computes without showing it: the tree, what is pruned, and what a search keeps."""

from __future__ import annotations

from typing import Any

from .driving import Chat
from .test_modules import call


def records(text: str) -> list[dict[str, Any]]:
    """A token for each word."""
    words = [f"{word} " for word in text.split()]
    return [{"i": sum(word.encode()), "b": word, "p": "content", "l": -1} for word in words]


def answer(id: str, text: str, **more: Any) -> dict[str, Any]:
    settings = {"temperature": "", "form": "", "system": "", "thinking": "", "tools": ""}
    own: dict[str, Any]
    own = {"id": id, "parent": "ask", "role": "assistant", "content": text, "reasoning": ""}
    own |= {"settings": settings | more.pop("settings", {}), "tokens": records(text), "calls": []}
    return own | {"from": None, "finish": "stop"} | more


def conversation(*answers: dict[str, Any], shown: str = "a") -> dict[str, Any]:
    ask = {"id": "ask", "parent": "", "role": "user", "text": "Which way?"}
    nodes = {each["id"]: each for each in (ask, *answers)}
    return {"id": "c", "nodes": nodes, "chosen": {"": "ask", "ask": shown}}


def drawn(node: dict[str, Any]) -> Any:
    """A tree as nested lists: what leads to each node, and what follows."""
    edge = node["edge"] and (node["edge"]["record"]["b"].strip(), node["edge"]["count"])
    return [edge, *map(drawn, node["children"])]


def test_answers_part_where_their_tokens_do_whoever_they_branch_off_from(tab: Chat) -> None:
    first = answer("a", "one two three four")
    fork = answer("b", "six", **{"from": {"node": "a", "at": 2}})
    alone = answer("c", "one two three five")
    other = answer("d", "one", settings={"system": "Be brief."})
    tree = call(tab, "map-tree", "treeOf", conversation(first, fork, alone, other), {})
    assert drawn(tree) == [
        None,
        [("one", 2), [("three", 1), [("four", 1)], [("five", 1)]], [("six", 1)]],
        [("one", 1)],  # another prompt has other odds
    ]
    fork_of_all = tree["children"][0]
    assert (fork_of_all["kind"], fork_of_all["at"], fork_of_all["logprob"]) == ("fork", 2, -2)
    assert [each["shown"] for each in fork_of_all["children"]] == [True, False]
    folded = call(tab, "map-tree", "treeOf", conversation(first, fork, alone), {})
    assert folded["children"] == tree["children"][:1]


def test_answers_with_the_same_tokens_have_ends_of_their_own(tab: Chat) -> None:
    same = [answer(id, "one two", settings={"temperature": t}) for id, t in (("a", ""), ("b", "0"))]
    tree = call(tab, "map-tree", "treeOf", conversation(*same), {})
    assert drawn(tree) == [None, [("one", 2), [None], [None]]]
    assert [end["settings"] for end in tree["children"][0]["children"]] == ["", "temperature 0"]


def test_edges_are_as_wide_as_they_are_likely(tab: Chat) -> None:
    widths = [
        call(tab, "map-tree", "widthOf", logprob)
        for logprob in (0, -2.302585, -6.907755, -50, None)
    ]
    assert widths == [9, 6.3, 1, 1, 1]


PRUNED = """async ([found, gone]) => {
  const { prune, putBack } = await import("/page/pruning.js");
  const { pathOf } = await import("/page/conversation.js");
  const texts = () => Object.fromEntries(Object.values(found.nodes).filter((n) => n.tokens)
    .map((n) => [n.id, pathOf(found, n).map((r) => r.b).join("").trim()]));
  const before = JSON.stringify(found);
  const pruned = prune(found, gone.map((id) => found.nodes[id]));
  const origins = Object.values(found.nodes).map((node) => [node.id, node.from?.node ?? null]);
  const left = [texts(), { ...found.chosen }, Object.fromEntries(origins)];
  putBack(found, pruned);
  const inOrder = (each) => Object.entries(each).sort(([one], [two]) => (one < two ? -1 : 1));
  const sorted = ({ nodes, chosen }) => JSON.stringify([nodes, chosen].map(inOrder));
  return [...left, sorted(JSON.parse(before)) === sorted(found), texts()];
}"""


def test_what_shared_tokens_with_a_pruned_branch_stays_whole(tab: Chat) -> None:
    nodes = [
        answer("a", "one two three four"),
        answer("b", "six seven", **{"from": {"node": "a", "at": 2}}),
        answer("c", "eight", **{"from": {"node": "b", "at": 3}}),
        {"id": "next", "parent": "a", "role": "user", "text": "And then?"},
    ]
    given = conversation(*nodes) | {"chosen": {"": "ask", "ask": "a", "a": "next"}}
    texts, chosen, origins, same, again = tab.page.evaluate(PRUNED, [given, ["a"]])
    assert texts == {"b": "one two six seven", "c": "one two six eight"}
    assert chosen == {"": "ask", "ask": "c"}
    assert origins == {"ask": None, "b": None, "c": "b"}
    assert same
    assert again == {"a": "one two three four", **texts}
    texts, _, origins, _, _ = tab.page.evaluate(PRUNED, [given, ["b"]])
    assert texts == {"a": "one two three four", "c": "one two six eight"}
    assert origins["c"] is None


SEARCHED = """async ([keep, depth, seed]) => {
  const { Beam } = await import("/page/search.js");
  const random = (key) => { // the same for the same key
    let hash = seed;
    for (const sign of key) hash = Math.imul(hash ^ sign.charCodeAt(0), 2654435761) >>> 0;
    return (hash % 9973) / 9973;
  };
  const refused = (key) => random(`no${key}`) < 0.2;
  const outcomeOf = (key, score) => {
    const grown = score - random(`run${key}`);
    const done = key.length > depth || random(`end${key}`) < 0.15;
    const ways = [0, 1, 2, 3].map((k) => ({ way: key + k, score: grown - random(key + k) * 3 }));
    return { key, score: grown, done, ways: ways.sort((one, other) => other.score - one.score) };
  };
  const beam = new Beam(keep, { way: "r", score: 0, parent: null });
  let grown = 0;
  do {
    const open = [];
    for (let k = 0; !beam.isRoundOver; k += 1) {
      const candidate = open.length < 3 ? beam.next() : null;
      if (candidate) open.push(candidate);
      else if (open.length) {
        const [one] = open.splice(k % open.length, 1);
        if (one.parent && refused(one.way)) beam.refused(one);
        else { grown += 1; beam.grew(one, outcomeOf(one.way, one.score)); }
      }
    }
    beam.turn();
  } while (!beam.isOver);
  // The same without leaving anything out.
  let [kept, all] = [[outcomeOf("r", 0)], 1];
  while (!kept.every(({ done }) => done)) {
    const open = kept.filter(({ done }) => !done);
    const waysOf = ({ ways }) => ways.filter(({ way }) => !refused(way)).slice(0, keep);
    const next = open.flatMap(waysOf).map(({ way, score }) => outcomeOf(way, score));
    all += next.length;
    kept = [...kept.filter(({ done }) => done), ...next]
      .sort((one, other) => other.score - one.score).slice(0, keep);
  }
  return [beam.kept.map(({ outcome }) => outcome.key), kept.map(({ key }) => key), grown, all];
}"""


def test_a_search_keeps_what_growing_everything_would_keep(tab: Chat) -> None:
    less = 0
    for keep in (1, 2, 3, 5):
        for seed in range(12):
            found, wanted, grown, all_grown = tab.page.evaluate(SEARCHED, [keep, 5, seed])
            assert found == wanted, (keep, seed)
            assert grown <= all_grown
            less += all_grown - grown
    assert less > 0


def test_a_search_branches_where_the_model_was_not_sure_and_had_a_choice(tab: Chat) -> None:
    sure = {"i": 1, "b": "a", "p": "content", "l": -0.01, "a": [[1, "a", -0.01], [2, "b", -5]]}
    forced = sure | {"l": -3, "f": 1}
    alone = sure | {"l": -3, "a": [[1, "a", -3], [2, "b", -1]], "x": [2]}
    unsure = sure | {"l": -1, "a": [[2, "b", -0.5], [1, "a", -1]]}
    path = [unsure, sure, forced, alone, unsure]
    assert call(tab, "search", "uncertainAt", path, 1, 0.8) == 4
    assert call(tab, "search", "uncertainAt", path[:4], 1, 0.8) == -1
    ways = call(tab, "search", "waysAt", unsure)
    assert ways == [{"id": 1, "logprob": -1}, {"id": 2, "logprob": -0.5}]
