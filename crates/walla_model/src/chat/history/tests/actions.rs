//! Lists with calls and results.

use super::*;
use crate::chat::Message;
use crate::chat::calls::CallShape;

const ROLES: [Role; 6] = [
    Role::System,
    Role::User,
    Role::Assistant,
    Role::Observation,
    Role::Action,
    Role::ActionResult,
];

/// Forms that probing can choose.
fn forms() -> Vec<Form> {
    let natural = ActionForm {
        shape: Some(CallShape::Function),
        results: true,
        with_text: true,
        several: true,
        result_last: true,
        ..ActionForm::default()
    };
    let apart = ActionForm { with_text: false, several: false, ..natural };
    let actions = [
        ActionForm::default(),
        ActionForm { results: true, result_last: true, ..ActionForm::default() },
        natural,
        apart,
        ActionForm { with_text: false, needs_result: true, ..natural },
        ActionForm { results: false, ..natural },
        ActionForm { uncounted: true, ..natural },
        ActionForm { uncounted: true, result_last: false, ..apart },
    ];
    let open = Form {
        system: SystemPlace::Anywhere,
        repeats: true,
        agent_first: true,
        agent_last: true,
        system_last: true,
        blanks: true,
        actions: ActionForm::default(),
    };
    let first = Form { system: SystemPlace::First, agent_first: false, ..open };
    let forms =
        [open, first, Form { system: SystemPlace::First, ..Form::default() }, Form::default()];
    let with = |form: Form| actions.map(|actions| Form { actions, ..form });
    let all = forms.into_iter().flat_map(with);
    // A template that accepts repetitions counts nothing.
    all.filter(|form| !form.repeats || !form.actions.uncounted).collect()
}

/// Calls `check` with every list of up to `length` messages of any role.
fn for_each_list(length: usize, check: &mut dyn FnMut(&[Message<'_>])) {
    let calls: Vec<String> = (0..length)
        .map(|at| format!(r#"{{"name": "act", "arguments": {{"text": "text{at}"}}}}"#))
        .collect();
    let texts: Vec<String> = (0..length).map(|at| format!("text{at}")).collect();
    let mut digits = vec![0; length];
    for used in 0..=length {
        for number in 0..ROLES.len().pow(used as u32) {
            let mut left = number;
            for digit in &mut digits {
                *digit = left % ROLES.len();
                left /= ROLES.len();
            }
            let messages: Vec<Message<'_>> = (0..used)
                .map(|at| {
                    let role = ROLES[digits[at]];
                    let content = if role == Role::Action { &calls[at] } else { &texts[at] };
                    Message::new(role, content)
                })
                .collect();
            check(&messages);
        }
    }
}

fn normal<'a>(form: &Form, messages: &[Message<'a>], for_reply: bool) -> Vec<NormalMessage<'a>> {
    normalize(form, messages.iter().map(|m| (m.role, m.content.into(), m.call)), for_reply)
}

/// The printed parts of a message.
fn printed(message: &NormalMessage<'_>) -> String {
    let calls: String = message.calls.iter().map(|call| format!("{call:?}")).collect();
    format!("{}{calls}|", message.content)
}

/// The first rule of the form that a list breaks.
fn broken(form: &Form, normal: &[NormalMessage<'_>], for_reply: bool) -> Option<&'static str> {
    let actions = &form.actions;
    let is_result = |message: &NormalMessage<'_>| message.role == Role::ActionResult;
    let is_call = |m: &NormalMessage<'_>| {
        m.role == Role::Assistant && (!m.calls.is_empty() || m.content.contains("<tool_call>"))
    };
    let follows_calls = |pair: &[NormalMessage<'_>]| {
        !is_result(&pair[1]) || is_result(&pair[0]) || is_call(&pair[0])
    };
    let counts = |m: &&NormalMessage<'_>| match m.role {
        Role::User => true,
        Role::Assistant => m.calls.is_empty() || !actions.uncounted,
        _ => false,
    };
    let turns: Vec<Role> = normal.iter().filter(counts).map(|m| m.role).collect();
    let alternates = || {
        actions.uncounted || normal.iter().any(is_result) || turns.windows(2).all(|t| t[0] != t[1])
    };
    let uncounted_alternates = || !actions.uncounted || turns.windows(2).all(|t| t[0] != t[1]);
    let has_text = |m: &NormalMessage<'_>| !m.content.is_empty() && !m.calls.is_empty();
    let answers = normal.iter().filter_map(|m| m.answered.as_ref());
    let ids: Vec<String> = answers.map(Call::id).collect();
    let last = normal.last().map(|m| m.role);
    let rules = [
        (
            "a role of the conversation",
            normal.iter().all(|m| {
                matches!(m.role, Role::System | Role::User | Role::Assistant | Role::ActionResult)
            }),
        ),
        ("calls", actions.shape.is_some() || normal.iter().all(|m| m.calls.is_empty())),
        ("results", actions.results || !normal.iter().any(is_result)),
        ("a result without a call", normal.windows(2).all(follows_calls)),
        ("a result of the same call", ids.is_sorted() && ids.windows(2).all(|i| i[0] != i[1])),
        ("several calls", actions.several || normal.iter().all(|m| m.calls.len() < 2)),
        ("text and calls", actions.with_text || !normal.iter().any(has_text)),
        ("a repetition", form.repeats || alternates()),
        ("a counted repetition", form.repeats || uncounted_alternates()),
        (
            "no message to reply to",
            !for_reply
                || last == Some(Role::User)
                || last == Some(Role::ActionResult) && actions.result_last
                || last == Some(Role::Assistant) && form.agent_last
                || last == Some(Role::System) && form.system_last,
        ),
    ];
    rules.iter().find(|(_, holds)| !holds).map(|(rule, _)| *rule)
}

#[test]
fn every_list_of_actions_has_the_form_and_keeps_its_texts() {
    let forms = forms();
    for_each_list(4, &mut |messages| {
        for form in &forms {
            for for_reply in [false, true] {
                let normal = normal(form, messages, for_reply);
                let broken = broken(form, &normal, for_reply);
                assert_eq!(broken, None, "{form:?} {messages:?}: {normal:?}");
                let all: String = normal.iter().map(printed).collect();
                let mut rest = all.as_str();
                for at in 0..messages.len() {
                    let text = format!("text{at}");
                    let Some(found) = rest.find(&text) else {
                        panic!("no {text} in its place in {all:?}: {form:?}");
                    };
                    rest = &rest[found + text.len()..];
                }
            }
        }
    });
}

#[test]
fn an_appended_call_or_result_changes_no_earlier_message() {
    let forms = forms();
    for_each_list(4, &mut |messages| {
        let Some((_, before)) = messages.split_last() else { return };
        for form in &forms {
            let (short, long) = (normal(form, before, false), normal(form, messages, false));
            let Some((last, earlier)) = short.split_last() else { continue };
            let context = || format!("{form:?}: {short:?} and {long:?}");
            assert!(long.starts_with(earlier), "{}", context());
            let extended = &long[earlier.len()];
            assert_eq!(extended.role, last.role, "{}", context());
            assert_eq!(extended.answered, last.answered, "{}", context());
            assert!(extended.content.starts_with(&*last.content), "{}", context());
            assert!(extended.calls.starts_with(&last.calls), "{}", context());
            // A message with calls is complete: text would be printed before them.
            let has_calls = !last.calls.is_empty();
            assert!(!has_calls || extended.content == last.content, "{}", context());
            let for_reply = normal(form, before, true);
            assert_eq!(for_reply[..short.len()], short, "{}", context());
        }
    });
}

#[test]
fn results_belong_to_calls_by_order() {
    let form = forms()[2];
    let turns: Vec<Content<'_>> = [
        (Role::User, "Hi"),
        (Role::Action, r#"{"name": "one", "arguments": {}}"#),
        (Role::Action, r#"{"name": "two", "arguments": {}}"#),
        (Role::ActionResult, "first"),
        (Role::ActionResult, " "),
        (Role::ActionResult, "no call"),
        (Role::Action, r#"{"name": "three", "arguments": {}}"#),
        (Role::ActionResult, "third"),
    ]
    .map(|(role, text)| (role, text.into(), None))
    .into();
    let normal = normalize(&form, turns, true);
    let name = |m: &NormalMessage<'_>| m.answered.as_ref().map(|call| call.name.clone());
    let named: Vec<_> = normal.iter().filter_map(|m| Some((name(m)?, &*m.content))).collect();
    let expected = [("one", "first"), ("two", FILLER), ("three", "third")];
    assert!(named.iter().map(|(name, text)| (name.as_str(), *text)).eq(expected), "{named:?}");
    assert!(normal.iter().any(|m| m.role == Role::System && m.content == "Result: no call"));
}

/// Calls `a`, `b`, `c` of one group and results with their numbers, in all orders and with any of
/// them missing: each result is at its call, in the order of the calls, in every form.
#[test]
fn results_belong_to_calls_by_number() {
    let call = |name: char| (Role::Action, format!(r#"{{"name": "{name}", "arguments": {{}}}}"#));
    let number = |name: char| Some(u128::from(u32::from(name)));
    let orders = [
        "abc", "acb", "bac", "bca", "cab", "cba", "ab", "ba", "ac", "ca", "bc", "cb", "a", "b", "c",
    ];
    for form in forms() {
        let prompt = |order: &str, tail: Option<(char, &str)>| {
            let mut turns: Vec<Content<'_>> = vec![(Role::User, "Hi".into(), None)];
            for name in "abc".chars() {
                let (role, text) = call(name);
                turns.push((role, text.into(), number(name)));
            }
            for name in order.chars() {
                turns.push((Role::ActionResult, format!("of {name}").into(), number(name)));
            }
            if let Some((name, text)) = tail {
                turns.push((Role::User, "And?".into(), None));
                turns.push((Role::ActionResult, text.to_owned().into(), number(name)));
            }
            normalize(&form, turns, true)
        };
        for order in orders {
            let normal = prompt(order, None);
            let mut sorted: Vec<char> = order.chars().collect();
            sorted.sort_unstable();
            let sorted: String = sorted.iter().collect();
            assert_eq!(normal, prompt(&sorted, None), "{order}: {form:?}");
            for message in &normal {
                let Some(call) = &message.answered else { continue };
                let is_filler = message.content == FILLER && !order.contains(&call.name);
                assert!(is_filler || message.content == format!("of {}", call.name), "{order}");
            }
            let text: String = normal.iter().map(|m| format!("{}\n", m.content)).collect();
            let places: Vec<_> =
                sorted.chars().map(|name| text.find(&format!("of {name}"))).collect();
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{order}: {text}");
        }
        // A result behind another message, and one of an unknown call.
        for (name, expected) in [('b', "Result: b: late"), ('x', "Result: late")] {
            let text: Vec<_> =
                prompt("a", Some((name, "late"))).into_iter().map(|m| m.content).collect();
            assert!(text.iter().any(|text| text.contains(expected)), "{text:?}");
        }
    }
}
