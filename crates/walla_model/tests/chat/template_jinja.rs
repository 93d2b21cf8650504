//! Jinja in chat templates: the same output as Jinja2 with transformers' settings.
//!
//! The expected texts are from Python's Jinja2 3.1 (`trim_blocks`, `lstrip_blocks`, loop controls,
//! transformers' `tojson`, `raise_exception` and `strftime_now` on 26 July 2024) for three
//! messages: user "Hi", assistant "Yo", user "Ok".

use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    let message = |role, content| Message::new(role, content);
    let messages =
        [message(Role::User, "Hi"), message(Role::Assistant, "Yo"), message(Role::User, "Ok")];
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    Ok(ChatTemplate::new(source, "<BOS>", "<EOS>")?.render(&messages, &options)?.text())
}

#[test]
fn statements_and_expressions() {
    for (source, expected) in CASES {
        match render(source) {
            Ok(found) => assert_eq!(found, expected, "{source}"),
            Err(error) => panic!("{source}: {error}"),
        }
    }
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('no ' ~ messages[0].content) }}").unwrap_err();
    assert_eq!(error, TemplateError::Raised("no Hi".into()));
}

#[test]
fn access_to_undefined_values_is_an_error() {
    let error = render("{{ messages[5].role }}").unwrap_err();
    assert!(matches!(error, TemplateError::Failed(_)), "{error}");
}

#[rustfmt::skip]
const CASES: [(&str, &str); 68] = [
    (r#"{% for i in range(5) %}{{ i }}{% if i == 3 %}{% break %}{% endif %}{% else %}none{% endfor %}"#, r#"0123"#),
    (r#"{% for i in [] %}{{ i }}{% else %}none{% endfor %}"#, r#"none"#),
    (r#"{% for i in range(6) if i is odd %}{{ loop.index }}:{{ i }}{% if not loop.last %},{% endif %}{% endfor %}"#, r#"1:1,2:3,3:5"#),
    (r#"{% for i in range(6) %}{% if i % 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"#, r#"024"#),
    (r#"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}"#, r#"a=1;b=2;"#),
    (r#"{% set x = 1 %}{% for i in [1,2] %}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }}"#, r#"671"#),
    (r#"{% set ns = namespace(n=0, s='') %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }} {{ ns.s }}"#, r#"6 0123"#),
    (r#"{% macro m(a, b='B') %}[{{ a }}|{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}"#, r#"[1|B][1|2][4|3]"#),
    (r#"{% macro m(a) %}{% if a > 0 %}{{ a }}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(4) }}"#, r#"4321"#),
    (r#"{% set x %}a{{ 1 + 1 }}b{% endset %}{{ x }}{{ x|length }}"#, r#"a2b3"#),
    (r#"{% if false %}a{% elif 0 %}b{% elif '' %}c{% else %}d{% endif %}"#, r#"d"#),
    (r#"{{ 'a' if true }}{{ 'a' if false }}{{ 'a' if false else 'b' }}"#, r#"ab"#),
    (r#"{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 1.5 }} {{ [1, 'a', none, true] }} {{ {'a': 'b'} }}"#, r#"None True False 1.0 1.5 [1, 'a', None, True] {'a': 'b'}"#),
    (r#"{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ 'abc'[:-1] }}{{ [1,2,3][-2:] }}"#, r#"bccbabcab[2, 3]"#),
    (r#"{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 'a' in 'abc' }} {{ 'x' not in ['x'] }} {{ 'a' in {'a': 1} }}"#, r#"True True True False True"#),
    (r#"{{ 'a' and 'b' }} {{ '' or 'b' }} {{ not '' }} {{ none or 0 or 'z' }}"#, r#"b b True z"#),
    (r#"{{ undefinedvar }}|{{ undefinedvar is defined }}|{{ undefinedvar|default('d') }}|{{ none|default('d') }}|{{ ''|default('d', true) }}"#, r#"|False|d|None|d"#),
    (r#"{{ 'Hello World'.upper() }} {{ 'Hello'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }}"#, r#"HELLO WORLD hello Hello World Hello"#),
    (r#"{{ 'a,b,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a\nb'.splitlines() }}"#, r#"['a', 'b', 'c'] ['a', 'b', 'c'] ['a', 'b,c'] ['a', 'b']"#),
    (r#"{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}"#, r#"x|x |  x|a"#),
    (r#"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abcabc'.replace('b', 'X') }} {{ 'abcabc'.replace('b', 'X', 1) }}"#, r#"True True aXcaXc aXcabc"#),
    (r#"{{ 'abcabc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aXbX'.count('X') }} {{ ','.join(['a','b']) }}"#, r#"2 -1 2 a,b"#),
    (r#"{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }}"#, r#"1 None 2 ['a'] [1]"#),
    (r#"{{ [1,2,3]|length }} {{ 'abc'|length }} {{ [3,1,2]|sort }} {{ [1,2]|first }} {{ [1,2]|last }} {{ [1,2]|reverse|list }}"#, r#"3 3 [1, 2, 3] 1 2 [2, 1]"#),
    (r#"{{ [1,2,3]|join(', ') }} {{ [1,2]|map('string')|join('-') }} {{ [{'a':1},{'a':2}]|map(attribute='a')|list }}"#, r#"1, 2, 3 1-2 [1, 2]"#),
    (r#"{{ [{'r':'u','n':1},{'r':'a','n':2}]|selectattr('r','equalto','u')|list|length }} {{ [1,0,2]|select|list }} {{ [1,2,3]|reject('odd')|list }}"#, r#"1 [1, 2] [2]"#),
    (r#"{{ [1, {'a': 'é<>&'}]|tojson(indent=2) }}"#, r#"[
  1,
  {
    "a": "é<>&"
  }
]"#),
    (r#"{{ ' x '|trim }}|{{ 'xAx'|upper }}|{{ 'a-b'|replace('-', '+') }}|{{ 'abc'|capitalize }}"#, r#"x|XAX|a+b|Abc"#),
    (r#"{{ 1 is number }} {{ 'a' is string }} {{ [] is iterable }} {{ {} is mapping }} {{ none is none }} {{ 2 is even }} {{ 3 is divisibleby 3 }} {{ true is true }} {{ 1 is true }}"#, r#"True True True True True True True True False"#),
    (r#"{% if x is not defined %}{% set x = 'dflt' %}{% endif %}{{ x }}"#, r#"dflt"#),
    (r#"{%- for m in messages -%} {{ m.role }}{{ loop.index0 }}{{ loop.first }}{{ loop.revindex }} {%- endfor -%}"#, r#"user0True3assistant1False2user2False1"#),
    (r#"a  {%- if true %}  b  {% endif -%}   c"#, r#"a  b  c"#),
    ("  {% if true %}\n  indented\n  {% endif %}\nend", "  indented\nend"),
    (r#"{# comment #}x{#- c -#}  y"#, r#"xy"#),
    (r#"{{ "a\tb\\n\"q\" \u00e9" }} {{ 'single\'s' }}"#, r#"a	b\n"q" é single's"#),
    (r#"{{ messages[0]['content'] }} {{ messages[0].role }} {{ messages|length }} {{ messages[-1].nope is defined }}"#, r#"Hi user 3 False"#),
    (r#"{% set a, b = 1, 2 %}{{ a }}{{ b }}"#, r#"12"#),
    (r#"{% set m = messages[0] %}{{ m['role'] ~ ':' ~ (m.content|length) }}"#, r#"user:2"#),
    (r#"{{ ('a' ~ 'b') * 3 if true else '' }}"#, r#"ababab"#),
    (r#"{% for c in 'abc' %}{{ c }}-{% endfor %}"#, r#"a-b-c-"#),
    (r#"{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{% endfor %}"#, r#"100 201 110 211 120 221 "#),
    (r#"{% for i in range(3) %}{{ loop.previtem is defined }}{{ loop.nextitem }} {% endfor %}"#, r#"False1 True2 True "#),
    (r#"{% generation %}x{{ 1 }}{% endgeneration %}"#, r#"x1"#),
    (r#"{{ strftime_now('%Y-%m-%d %d %b %Y %B') }}"#, r#"2024-07-26 26 Jul 2024 July"#),
    (r#"{% with a = 3 %}{{ a }}{% endwith %}"#, r#"3"#),
    (r#"{% filter upper %}abc{{ 1 }}{% endfilter %}"#, r#"ABC1"#),
    (r#"{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}"#, r#"<in>"#),
    (r#"{{ loop is defined }} {{ messages is sequence }} {{ 'a' is lower }} {{ [1]|tojson|length }}"#, r#"False True True 3"#),
    (r#"{{ 'a' == 'a' and 1 != 2 }} {{ [1] == [1] }} {{ {'a':1} == {'a':1} }} {{ 1 == 1.0 }} {{ '1' == 1 }}"#, r#"True True True True False"#),
    (r#"{%- set sys = messages[0].content if messages[0].role == 'system' else '' %}{{ sys }}|"#, r#"|"#),
    (r#"{{ 'x'|string|e }} {{ '<b>'|e }} {{ '<b>'|safe }}"#, r#"x &lt;b&gt; <b>"#),
    (r#"{{ "%s" }} {{ '{% raw %}' }}"#, r#"%s {% raw %}"#),
    (r#"{{ 10000000000 * 10 }} {{ 0.1 + 0.2 }} {{ 1e3 }} {{ 5 // 0.5 }}"#, r#"100000000000 0.30000000000000004 1000.0 10.0"#),
    (r#"{% if messages[0]['role'] == 'user' and messages|length > 0 or false %}yes{% endif %}"#, r#"yes"#),
    (r#"{{ [['a', 1], ['b', 2]]|list }} {{ {'x': {'y': [1, 2]}}.x.y[1] }}"#, r#"[['a', 1], ['b', 2]] 2"#),
    (r#"{{ messages[1:]|map(attribute='role')|join(',') }} {{ messages|map(attribute='content')|first }}"#, r#"assistant,user Hi"#),
    (r#"{{ "line1\nline2"|indent(2) }}|{{ "l1\nl2"|indent(2, true) }}"#, "line1\n  line2|  l1\n  l2"),
    (r#"{{ tools is none }} {{ documents is none }}{% if tools is not none %} tools{% endif %}"#, r#"True True"#),
    (r#"{% for k in {'user': 1, 'assistant': 2} %}{{ k }},{% endfor %} {{ {'name': 'n', 'arguments': 1} | tojson }} {{ messages[0] | tojson }}"#, r#"user,assistant, {"name": "n", "arguments": 1} {"role": "user", "content": "Hi"}"#),
    (r#"{{ ["a\nb", "it's", 'q"', "'\"", '\\'] }}"#, r#"['a\nb', "it's", 'q"', '\'"', '\\']"#),
    (r#"{{ 'a b c'.split(none, 1) }} {{ ' a  b c '.split(none, 1) }} {{ ' a '.split() }} {{ ''.split() }}"#, r#"['a', 'b c'] ['a', 'b c '] ['a'] []"#),
    (r#"{{ 'a\r\nb\n\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ ''.splitlines() }}"#, r#"['a', 'b', '', 'c'] ['a\n', 'b'] []"#),
    (r#"{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }} {{ 'a'.removesuffix('aa') }}"#, r#"bc a abc a"#),
    (r#"{{ 'a\n\nb\n' | indent(2) }}|{{ 'a\n\nb\n' | indent(2, true, true) }}|"#, "a\n\n  b\n|  a\n  \n  b\n  |"),
    (r#"{{ 'abc'[0] }}{{ 'abc'[-3] }}{{ 'abc'[3] is defined }}{{ 'abc'[-4] is defined }} {{ 'abc' | first }}{{ 'abc' | last }} {{ [1, 2] | min }}{{ [1, 2] | max }} {{ [2, 1, 2] | unique | list }} {{ '7' | int }} {{ '7' | float }}"#, r#"aaFalseFalse ac 12 [2, 1] 7 7.0"#),
    (r#"{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %} {% for i in [1, 1, 2] %}{{ loop.changed(i, 'a') }}{% endfor %}"#, r#"TrueFalseTrue TrueFalseTrue"#),
    (r#"{% for i in [1, [2, [3]]] recursive %}{% if i is number %}{{ i }}{% else %}({{ loop(i) }}){% endif %}{% endfor %}"#, r#"1(2(3))"#),
    (r#"{{ [[1, 2], [3]] | map('first') | list }} {{ [{'a': {'b': 1}}, {'a': {}}] | map(attribute='a.b', default=0) | list }} {{ [[1], [0]] | selectattr(0) | list }} {{ [1, 2, 3] | select('in', [1, 3]) | list }} {{ [{'a': 1}, {'a': 2}] | rejectattr('a', 'gt', 1) | list }}"#, r#"[1, 3] [1, 0] [[1]] [1, 3] [{'a': 1}]"#),
];

/// The same for untrusted text with white space: " é", an empty line, "b \tc", a line break.
#[test]
fn expressions_on_untrusted_white_space() {
    for (source, expected) in UNTRUSTED {
        let source = format!("{{% set c = messages[0].content %}}{source}");
        let template = ChatTemplate::new(&source, "<BOS>", "<EOS>").unwrap();
        let messages = [Message::new(Role::User, " é\n\nb \tc\n")];
        match template.render(&messages, &RenderOptions::default()) {
            Ok(found) => assert_eq!(found.text(), expected, "{source}"),
            Err(error) => panic!("{source}: {error}"),
        }
    }
}

#[rustfmt::skip]
const UNTRUSTED: [(&str, &str); 7] = [
    (r"{{ c.removesuffix('\n') }}|{{ c.removesuffix('x') }}|{{ c.removeprefix(' ') }}|", " é\n\nb \tc| é\n\nb \tc\n|é\n\nb \tc\n|"),
    (r"{{ c.splitlines() | length }} {{ c.splitlines() | join('/') }}", "3  é//b \tc"),
    (r"{{ c.split('\n') | join('/') }}|{{ c.split() | join('/') }}|{{ c.split(none, 1) | join('/') }}|", " é//b \tc/|é/b/c|é/b \tc\n|"),
    (r"{{ c | indent(2) }}|{{ c | indent(2, true, true) }}|", " é\n\n  b \tc\n|   é\n  \n  b \tc\n  |"),
    (r"{{ c[1] }}{{ c[-2] }}{{ c[1:2] }}{{ c.strip()[0] }}{{ c.strip() | first }}{{ c.strip() | last }}|{{ c | length }}", "écéééc|9"),
    (r"{% for x in c %}{{ x }}.{% endfor %}", " .é.\n.\n.b. .\t.c.\n."),
    (r"{{ c.endswith('\n') }} {{ c.startswith(' ') }} {{ c.startswith('\n') }}", "True True False"),
];
