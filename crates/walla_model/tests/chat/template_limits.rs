//! Bad templates give errors, quickly, and never end the process.
//!
//! Without the limits of `walla_model::chat`, each of these would end a process: by a stack
//! overflow, an impossible allocation or a panic of the engine. They run on a thread with the stack
//! size of a small host thread.

use walla_model::chat::{
    ChatTemplate, MAX_OUTPUT_BYTES, MAX_SOURCE_BYTES, Message, RenderOptions, Role, TemplateError,
};

/// Stack size of the thread, in bytes: half of Rust's default.
const STACK_BYTES: usize = 1 << 20;

fn render(source: &str, content: &str) -> Result<String, TemplateError> {
    let (source, content) = (source.to_owned(), content.to_owned());
    let run = move || {
        let template = ChatTemplate::new(&source, "<s>", "</s>")?;
        let messages = [Message::new(Role::User, &content)];
        template.render(&messages, &RenderOptions::default()).map(|prompt| prompt.text())
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap();
    thread.join().unwrap()
}

#[track_caller]
fn refused(source: &str) -> TemplateError {
    let start = std::time::Instant::now();
    let shown: String = source.chars().take(80).collect();
    let error = render(source, "x").expect_err(&shown);
    // A generous limit, for machines that run many tests at once. A template without limits takes
    // minutes.
    assert!(start.elapsed().as_secs() < 60, "{shown}: {:?}", start.elapsed());
    error
}

#[test]
fn chains_do_not_overflow_the_stack() {
    let n = 30_000;
    for (before, link, behind) in [
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ messages", ".b", " }}"),
        ("{{ messages", "[0]", " }}"),
        ("{{ 1", "|abs", " }}"),
        ("{{ range", "(1)", " }}"),
        ("{{ 1", " or 1", " }}"),
        ("{{ 1", " < 1", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "1 if 0 else ", "1 }}"),
        ("{{ ", "(", "1 }}"),
        ("{{ ", "[", "1 }}"),
        ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for a in [1] %}", ""),
    ] {
        let n = n.min((MAX_SOURCE_BYTES - 100) / link.len());
        let error = refused(&format!("{before}{}{behind}", link.repeat(n)));
        assert!(matches!(error, TemplateError::Syntax(_)), "{link}: {error}");
    }
}

#[test]
fn endless_loops_run_out_of_fuel() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro f() %}{% for i in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
    ] {
        let error = refused(source);
        assert!(matches!(error, TemplateError::Runaway(_)), "{source}: {error}");
    }
}

/// One instruction reads a whole value and returns something too small to count: a bool, a number,
/// an empty list.
#[test]
fn repeated_reads_run_out_of_fuel() {
    let begin = "{% set r = range(100000) %}{% set q = range(100000, 200000) %}{% set n = 4000000 %}\
        {% set x = 'x' * n %}{% set y = x[1:] ~ 'y' %}";
    for step in [
        "{% if r | select('in', q) | list %}{% endif %}",
        "{% if q | reject('lt', 0) | reject('ge', 0) | list %}{% endif %}",
        "{% if messages | selectattr('content', 'eq', x) | list %}{% endif %}",
        "{% if 'x' in r %}{% endif %}",
        "{% if q in 'x' %}{% endif %}",
        "{% if 'x' not in r %}{% endif %}",
        "{% if 1 < 2 in q %}{% endif %}",
        "{% if q == r %}{% endif %}",
        "{% if x == y %}{% endif %}",
        "{% if x < y %}{% endif %}",
        "{% if x is eq y %}{% endif %}",
        "{% if -1 is in q %}{% endif %}",
        "{% if x is lower %}{% endif %}",
        "{% if x | length %}{% endif %}",
        "{% if x[3999999] %}{% endif %}",
        "{% if x[1:2] %}{% endif %}",
        "{% if (r + q)[150000] %}{% endif %}",
        "{% if q | max %}{% endif %}",
        "{% if q | min %}{% endif %}",
        "{% if q | last %}{% endif %}",
        "{% if [x] | map(attribute='3999999') %}{% endif %}",
        "{% if (x ~ '\\n') | trim('xyz\\n') %}{% endif %}",
        "{% if 'x'.startswith(x) %}{% endif %}",
        "{% if loop.changed(q) %}{% endif %}",
        "{% if loop.changed(1, q) %}{% endif %}",
        "{% for c in x %}{% break %}{% endfor %}",
    ] {
        let error = refused(&format!("{begin}{{% for i in r %}}{step}{{% endfor %}}"));
        assert!(matches!(error, TemplateError::Runaway(_)), "{step}: {error}");
    }
    let recursive = "{% for i in range(100000) recursive %}{% if loop.depth == 2 %}{% break %}{% endif %}{{ loop(x) }}{% endfor %}";
    let error = refused(&format!("{begin}{recursive}"));
    assert!(matches!(error, TemplateError::Runaway(_)), "{error}");
}

/// The tests in real templates are cheap for conversations of any length.
#[test]
fn tests_of_long_texts_are_cheap() {
    let content = "word ".repeat(200_000); // 1 MB
    let source = "{% for m in messages %}{% for i in range(9) %}{% if m.role == 'user' and '</think>' not in m.content and m.content != '' and m.content is string and 'tool_calls' not in m and m.content | length > 3 %}{{ i }}{% endif %}{% endfor %}{{ m.content | trim }}{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ (messages | last).role }}";
    let text = render(source, &content).unwrap();
    assert_eq!(text, format!("012345678{}1user", content.trim()));
}

#[test]
fn memory_of_a_template_is_bounded() {
    let in_loop = |step: &str| {
        format!(
            "{{% set ns = namespace(x='a', l=[1]) %}}{{% for i in range(90) %}}{step}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    for step in [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = 'aa'.replace('a', ns.x) %}",
        "{% set ns.x = 'aa'|replace('a', ns.x) %}",
        "{% set ns.x = ns.x.join([1, 2, 3, 4, ns.x]) %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = f(ns.x) %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 2 %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.x = (ns.x ~ 'b').upper() ~ ns.x.lower() %}",
        "{% set ns.x = ns.x ~ [ns.x]|tojson %}",
        "{% set ns.x = ns.x ~ [ns.x]|string %}",
        "{% set ns.x = ns.x[:] ~ ns.x[::-1] %}",
    ] {
        let error = refused(&in_loop(step));
        assert!(matches!(error, TemplateError::Runaway(_)), "{step}: {error}");
    }
    for source in [
        "{{ 'a'|indent(100000000000) }}",
        "{{ 'a' * 100000000000 }}",
        "{{ 'a' * 1e8 }}",
        "{{ 1e8 * 'a' }}",
        "{{ [1] * 1e8 }}",
        "{{ (1,) * 99999999 }}",
        "{% for x in (1,) * 99999999 %}{% endfor %}",
        "{{ ('a' * 100000000)|length }}{{ ('a' * 100000000)|length }}",
        "{{ ([messages] * 1000000)|join }}",
        "{% set n = 99999999 %}{{ ((1,) * n)|length }}",
        "{% set n = 99999999 %}{{ (messages * n)|length }}",
        "{% set n = 9000000 %}{{ ('a' * n)|list|length }}",
        "{% set n = 9000000 %}{{ ('a' * n).split('a')|length }}",
        "{{ range(100000)|slice(10000000000)|list|length }}",
        "{{ [1]|batch(10000000000, 'x')|list|length }}",
        "{% set n = 9000000 %}{% for c in 'x' * n %}{% endfor %}{{ ('x' * n)|list|length }}{{ 'x' * n * n }}",
    ] {
        refused(source);
    }
}

#[test]
fn nested_and_cyclic_values_are_refused() {
    for source in [
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x}.items() %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = (ns.x, 1) %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    ] {
        refused(source);
    }
}

#[test]
fn panics_of_the_template_engine_are_caught() {
    for source in [
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        "{% for i in [1] %}{{ loop.cycle(*[]) }}{% endfor %}",
        "{% for i in [1] %}{{ loop.cycle(**{}) }}{% endfor %}",
        "{{ 1 is divisibleby 0 }}",
        "{% set n = 170141183460469231731687303715884105727 %}{{ (-n - 1) is divisibleby -1 }}{{ x.y.z }}",
    ] {
        let error = refused(source);
        assert!(!error.to_string().contains("panicked"), "{source}: {error}");
    }
}

#[test]
fn lengths_are_limited() {
    let long = " ".repeat(MAX_SOURCE_BYTES + 1);
    let bytes = MAX_SOURCE_BYTES + 1;
    assert_eq!(refused(&long), TemplateError::SourceTooLong { bytes });
    // Nine million bytes result from a short template and a long message.
    let content = "x".repeat(MAX_OUTPUT_BYTES / 16);
    let error = render("{% for i in range(9) %}{{ messages[0].content }}{% endfor %}", &content);
    assert_eq!(error, Err(TemplateError::OutputTooLong));
}

#[test]
fn long_conversations_fit() {
    let content = "word ".repeat(40_000); // 200 kB
    let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' }}{% endfor %}";
    let text = render(chatml, &content).unwrap();
    assert_eq!(text.len(), "<|im_start|>user\n<|im_end|>".len() + content.trim().len());
    // Many short messages.
    let template = ChatTemplate::new(chatml, "", "").unwrap();
    let messages = vec![Message::new(Role::User, "Hello there"); 2_000];
    assert!(template.render(&messages, &RenderOptions::default()).is_ok());
}
