use super::*;

mod actions;

const ROLES: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Observation];

/// Every form that can be chosen: none has system messages anywhere without repetition.
fn forms() -> Vec<Form> {
    let places = [SystemPlace::Anywhere, SystemPlace::First, SystemPlace::Nowhere];
    let flags = (0..32_u8).map(|bits| [1, 2, 4, 8, 16].map(|bit| bits & bit != 0));
    let all = flags.flat_map(|[repeats, agent_first, agent_last, system_last, blanks]| {
        places.map(|system| Form {
            system,
            repeats,
            agent_first,
            agent_last,
            system_last,
            blanks,
            actions: ActionForm::default(),
        })
    });
    all.filter(|form| form.repeats || form.system != SystemPlace::Anywhere).collect()
}

/// Calls `check` with every list of up to `length` messages: of every role, with a distinct
/// text or blank.
fn for_each_list(length: usize, check: &mut dyn FnMut(&[Message<'_>])) {
    const TEXTS: [&str; 5] = ["one", "two", "three", "four", "five"];
    fn extend<'a>(
        left: usize,
        messages: &mut Vec<Message<'a>>,
        check: &mut dyn FnMut(&[Message<'_>]),
    ) {
        check(messages);
        if left == 0 {
            return;
        }
        let text = TEXTS[messages.len()];
        for role in ROLES {
            for content in [text, " \n"] {
                messages.push(Message::new(role, content));
                extend(left - 1, messages, check);
                messages.pop();
            }
        }
    }
    extend(length, &mut Vec::new(), check);
}

/// Normalises messages.
fn normal<'a>(form: &Form, messages: &[Message<'a>], for_reply: bool) -> Vec<NormalMessage<'a>> {
    normalize(form, messages.iter().map(|m| (m.role, m.content.into(), m.call)), for_reply)
}

fn is_taken(form: &Form, normal: &[NormalMessage<'_>], for_reply: bool) -> Result<(), String> {
    let speakers = normal.iter().filter(|m| m.role != Role::System).map(|m| m.role);
    let leading = normal.iter().take_while(|m| m.role == Role::System).count();
    let systems = normal.iter().filter(|m| m.role == Role::System).count();
    let max_systems = match form.system {
        SystemPlace::Anywhere => usize::MAX,
        SystemPlace::First => 1,
        SystemPlace::Nowhere => 0,
    };
    let last_can_be_replied_to = match normal.last().map(|m| m.role) {
        Some(Role::User) => true,
        Some(Role::Assistant) => form.agent_last,
        Some(_) => form.system_last,
        None => false,
    };
    let is_repeated = |pair: &[NormalMessage<'_>]| pair[0].role == pair[1].role;
    let rules = [
        ("an observation", normal.iter().all(|m| m.role != Role::Observation)),
        ("too many system messages", systems <= max_systems),
        ("a late system message", form.system == SystemPlace::Anywhere || leading == systems),
        ("a repetition", form.repeats || !normal.windows(2).any(is_repeated)),
        ("the agent first", form.agent_first || speakers.clone().next() != Some(Role::Assistant)),
        ("a blank message", form.blanks || !normal.iter().any(|m| is_blank(&m.content))),
        ("no message to reply to", !for_reply || last_can_be_replied_to),
    ];
    match rules.iter().find(|(_, holds)| !holds) {
        Some((broken, _)) => Err(format!("{broken}: {normal:?}")),
        None => Ok(()),
    }
}

#[test]
fn every_list_of_messages_is_normalized_and_keeps_its_texts() {
    let forms = forms();
    for_each_list(4, &mut |messages| {
        for form in &forms {
            for for_reply in [false, true] {
                let normal = normal(form, messages, for_reply);
                let context = || format!("{form:?} {messages:?}");
                is_taken(form, &normal, for_reply)
                    .unwrap_or_else(|broken| panic!("{broken} in {}", context()));
                let all: String = normal.iter().flat_map(|m| [&*m.content, "|"]).collect();
                let mut rest = all.as_str();
                for message in messages.iter().filter(|m| !is_blank(m.content)) {
                    let at = rest.find(message.content).unwrap_or_else(|| {
                        panic!("{:?} is not in {all:?}, in order: {}", message.content, context())
                    });
                    rest = &rest[at + message.content.len()..];
                }
            }
        }
    });
}

/// Prompts share their prefix in the KV cache.
#[test]
fn an_appended_message_changes_no_earlier_one() {
    let forms = forms();
    for_each_list(4, &mut |messages| {
        let Some((_, before)) = messages.split_last() else { return };
        for form in &forms {
            let (short, long) = (normal(form, before, false), normal(form, messages, false));
            let Some((last, earlier)) = short.split_last() else { continue };
            let context = || format!("{form:?}: {short:?} and {long:?}");
            assert!(long.len() >= short.len(), "{}", context());
            for (short, long) in earlier.iter().zip(&long) {
                assert_eq!(short, long, "{}", context());
            }
            let extended = &long[earlier.len()];
            assert_eq!(extended.role, last.role, "{}", context());
            assert!(extended.content.starts_with(&*last.content), "{}", context());
            // The filler for a reply follows at the end.
            let for_reply = normal(form, before, true);
            assert_eq!(for_reply[..short.len()], short, "{}", context());
            assert!(for_reply.len() <= short.len() + 1, "{}", context());
        }
    });
}

#[test]
fn conversations_that_every_template_accepts_are_unchanged() {
    let forms = forms();
    for_each_list(4, &mut |messages| {
        for for_reply in [false, true] {
            let Some(same) = as_it_is(messages, for_reply) else { continue };
            let same_messages = same.iter().map(|m| Message::new(m.role, &m.content));
            assert!(same_messages.eq(messages.iter().copied()));
            for form in &forms {
                assert_eq!(normal(form, messages, for_reply), same, "{form:?}");
            }
        }
    });
    let ask = [Message::new(Role::User, "Hi")];
    assert!(as_it_is(&ask, true).is_some());
    assert!(as_it_is(&[], false).is_none());
}

#[test]
fn merged_texts_are_separated_by_an_empty_line() {
    let message = |role, content| Message::new(role, content);
    let messages = [
        message(Role::System, "You are Greta."),
        message(Role::Observation, "Odo comes in."),
        message(Role::User, "Hi"),
        message(Role::User, ""),
        message(Role::User, "Anyone?"),
        message(Role::Assistant, "Welcome."),
    ];
    let normal = normal(&Form::default(), &messages, true);
    let texts: Vec<_> = normal.iter().map(|m| (m.role, &*m.content)).collect();
    let all = "You are Greta.\n\nObservation: Odo comes in.\n\nHi\n\nAnyone?";
    assert_eq!(texts, [(Role::User, all), (Role::Assistant, "Welcome."), (Role::User, FILLER)]);
}
