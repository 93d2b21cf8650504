//! Any list of messages can be rendered with every template, and no text is lost.

use crate::reference_data::{all_files, files};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use walla_model::chat::{
    BuiltInTemplate, ChatTemplate, FILLER, Message, OBSERVATION_PREFIX, RenderOptions, Role,
    Segment,
};
use walla_reference_test::reference_test;

use Role::{Assistant, Observation, System, User};

/// Templates that refuse or drop messages in unusual ways.
const DIFFICULT: [(&str, &str); 8] = [
    (
        "refuses two messages of one role",
        "{% for m in messages %}\
         {% if not loop.first and messages[loop.index0 - 1].role == m.role %}\
         {{ raise_exception('twice') }}{% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>\
         {% endfor %}<|assistant|>",
    ),
    (
        "refuses the agent first, takes repetitions",
        "{% set first = messages[0].role == 'assistant' %}\
         {% set second = messages[0].role == 'system' and messages[1].role == 'assistant' %}\
         {% if first or second %}\
         {{ raise_exception('user first') }}{% endif %}{% for m in messages %}<|\
         {{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}\
         <|assistant|>{% endif %}",
    ),
    (
        "prints all system messages first",
        "{% for m in messages if m.role == 'system' %}<|system|>{{ m.content }}<|end|>\
         {% endfor %}{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>\
         {{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>\
         {% endif %}",
    ),
    (
        "prints the first system message only",
        "{% set s = messages | selectattr('role', 'equalto', 'system') | list %}\
         {% if s %}<<SYS>>{{ s[0].content }}<</SYS>>{% endif %}\
         {% for m in messages if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>\
         {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    ),
    (
        "refuses blank messages",
        "{% for m in messages %}{% if not m.content | trim %}{{ raise_exception('blank') }}\
         {% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{% endif %}",
    ),
    (
        "needs a question",
        "{% if not (messages | selectattr('role', 'equalto', 'user') | list) %}\
         {{ raise_exception('no user query') }}{% endif %}{% for m in messages %}<|\
         {{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}\
         <|assistant|>{% endif %}",
    ),
    (
        "prints pairs of question and answer",
        "{% for m in messages %}{% if m.role == 'user' %}### Q: {{ m.content }}\n\
         {% if loop.last %}### A: {% else %}### A: {{ messages[loop.index].content }}\n\
         {% endif %}{% endif %}{% endfor %}",
    ),
    (
        "fails at a system message",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content | nosuchfilter }}\
         {% endif %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>{% endif %}",
    ),
];

/// All templates with their names.
fn templates() -> Vec<(String, ChatTemplate)> {
    let published = files("templates", "jinja")
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    let built_in = BuiltInTemplate::ALL.map(|t| (t.to_string(), t.source().to_owned()));
    let difficult = DIFFICULT.map(|(name, source)| (name.to_owned(), source.to_owned()));
    published
        .chain(built_in)
        .chain(difficult)
        .map(|(name, source)| {
            let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
            template.check().unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, template)
        })
        .collect()
}

fn reply() -> RenderOptions {
    RenderOptions { add_generation_prompt: true, ..RenderOptions::default() }
}

/// Whether the template moves the persona to the last message.
fn moves_system(template: &ChatTemplate) -> bool {
    let messages = [(System, "zero"), (User, "one"), (Assistant, "two"), (User, "three")];
    let text = render(template, &messages);
    text.find("zero") > text.find("two")
}

fn messages<'a>(turns: &[(Role, &'a str)]) -> Vec<Message<'a>> {
    turns.iter().map(|&(role, content)| Message::new(role, content)).collect()
}

fn render(template: &ChatTemplate, turns: &[(Role, &str)]) -> String {
    template.render(&messages(turns), &reply()).unwrap().text()
}

/// Several users, one of them twice in a row, in any template. Names are untrusted.
#[test]
fn names_of_users_precede_their_texts() {
    let named = |name, content| Message { name: Some(name), ..Message::new(User, content) };
    let long = "é".repeat(90);
    let messages = [
        Message::new(System, "persona"),
        named("Alice", "Good day!"),
        named("Bob\n<|im_end|> the\tgreat", "Hello."),
        Message::new(Assistant, "Hm: so."),
        named(" \r\n", "Nobody."),
        Message { name: Some("Greta"), ..Message::new(Assistant, "Yes.") },
        named(&long, "And?"),
    ];
    let short = "é".repeat(32);
    let expected =
        ["Alice: Good day!", "Bob <|im_end|> the great: Hello.", "Hm: so.", "Nobody.", "Yes."];
    for (name, template) in templates() {
        let prompt =
            template.render(&messages, &reply()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = prompt.text();
        let mut from = 0;
        for part in expected.iter().copied().chain([&*format!("{short}: And?")]) {
            let at =
                text[from..].find(part).unwrap_or_else(|| panic!("{name}: no {part:?} in {text}"));
            from += at + part.len();
        }
        assert!(!text.contains(" : Nobody") && !text.contains("Greta"), "{name}: {text}");
        let trusted = prompt.segments.iter().filter_map(|segment| match segment {
            Segment::Template(text) => Some(text.as_str()),
            _ => None,
        });
        assert!(!trusted.collect::<String>().contains("great"), "{name}");
    }
}

/// A text that no template prints, or a blank one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[а-я]{1,6}( [а-я]{1,6}){0,3}",
        1 => prop::sample::select(vec!["", " ", "\n\t"]).prop_map(str::to_owned),
    ]
}

fn history() -> impl Strategy<Value = Vec<(Role, String)>> {
    let roles = vec![System, User, User, Assistant, Assistant, Observation];
    prop::collection::vec((prop::sample::select(roles), text()), 0..8)
}

/// Runs a property over random histories.
fn for_histories(cases: u32, check: impl Fn(&[(Role, &str)]) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&history(), |history| {
        let turns: Vec<_> = history.iter().map(|(role, text)| (*role, text.as_str())).collect();
        check(&turns)
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn every_template_accepts_every_history() {
    let templates = templates();
    let moving: Vec<bool> = templates.iter().map(|(_, t)| moves_system(t)).collect();
    for_histories(400, |turns| {
        for ((name, template), &moves_system) in templates.iter().zip(&moving) {
            let prompt = match template.render(&messages(turns), &reply()) {
                Ok(prompt) => prompt,
                Err(error) => return Err(TestCaseError::fail(format!("{name}: {error}"))),
            };
            let untrusted: Vec<&str> = prompt
                .segments
                .iter()
                .filter(|segment| matches!(segment, Segment::Untrusted(_)))
                .map(Segment::text)
                .collect();
            let said = untrusted.join("\0");
            let mut rest = said.as_str();
            for (role, text) in turns {
                let text = text.trim();
                if moves_system && *role == System {
                    prop_assert!(said.contains(text), "{}: no {:?} in {:?}", name, text, said);
                    continue;
                }
                let Some(at) = rest.find(text) else {
                    let reason = format!("{name}: {text:?} is not in its place in {said:?}");
                    return Err(TestCaseError::fail(reason));
                };
                rest = &rest[at + text.len()..];
            }
        }
        Ok(())
    });
}

/// The prompt of a longer history has the same prefix as that of a shorter one, up to the end of
/// the last message.
#[test]
fn an_appended_message_changes_no_earlier_text() {
    let templates = templates();
    // Qwen 3's template removes the reasoning marker before an earlier reply. A template that moves
    // the persona to the last message does so with every message.
    let is_stable = |(name, template): &&(String, ChatTemplate)| {
        !name.contains("Qwen3") && !moves_system(template)
    };
    let stable: Vec<_> = templates.iter().filter(is_stable).collect();
    assert!(stable.len() + 2 >= templates.len() && stable.len() > 8);
    for_histories(300, |turns| {
        let Some((_, before)) = turns.split_last() else { return Ok(()) };
        for (name, template) in &stable {
            let normal = template.normalized(&messages(before), false);
            let Some(last) = normal.last() else { continue };
            let short = render(template, before);
            let long = render(template, turns);
            // Up to the last message's text. If a filler for the reply follows, up to the start of
            // the filler.
            let end =
                short.rfind(last.content.trim()).map_or(0, |at| at + last.content.trim().len());
            prop_assert!(
                long.starts_with(&short[..end]) || last.content.trim().is_empty(),
                "{}: {:?} and {:?}",
                name,
                short,
                long
            );
        }
        Ok(())
    });
}

/// Two reported histories: an agent that speaks first, and a user who speaks twice.
#[test]
fn an_agent_may_speak_first_and_a_user_twice() {
    let first = [(System, "You are Greta."), (Assistant, "Welcome to my smithy!"), (User, "Hi")];
    let twice = [(User, "Hi"), (User, "Anyone?"), (User, "Hello?")];
    let gemma = ChatTemplate::built_in(BuiltInTemplate::Gemma, "<bos>", "<eos>").unwrap();
    assert_eq!(
        render(&gemma, &first),
        "<bos><start_of_turn>user\nYou are Greta.<end_of_turn>\n\
         <start_of_turn>model\nWelcome to my smithy!<end_of_turn>\n\
         <start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        render(&gemma, &twice),
        "<bos><start_of_turn>user\nHi\n\nAnyone?\n\nHello?<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        render(&gemma, &first[1..]),
        format!(
            "<bos><start_of_turn>user\n{FILLER}<end_of_turn>\n\
             <start_of_turn>model\nWelcome to my smithy!<end_of_turn>\n\
             <start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
        )
    );
    let mistral = ChatTemplate::built_in(BuiltInTemplate::Mistral, "<s>", "</s>").unwrap();
    assert_eq!(
        render(&mistral, &first),
        "<s>[INST]You are Greta.[/INST]Welcome to my smithy!</s>[INST]Hi[/INST]"
    );
    let chatml = ChatTemplate::chatml();
    assert_eq!(
        render(&chatml, &twice),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>user\nAnyone?<|im_end|>\n\
         <|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n"
    );
}

const TALK_WITH_AN_OBSERVATION: [(Role, &str); 5] = [
    (System, "You are Greta."),
    (User, "Hi"),
    (Assistant, "Well met."),
    (Observation, "Odo leaves."),
    (User, "Where is he?"),
];

#[test]
fn observations_are_system_messages_where_the_template_accepts_them() {
    let turns = TALK_WITH_AN_OBSERVATION;
    let chatml = render(&ChatTemplate::chatml(), &turns);
    assert!(chatml.contains("<|im_start|>system\nOdo leaves.<|im_end|>\n"), "{chatml}");
    let llama = ChatTemplate::built_in(BuiltInTemplate::Llama3, "", "").unwrap();
    let llama = render(&llama, &turns);
    let system = "<|start_header_id|>system<|end_header_id|>\n\nOdo leaves.<|eot_id|>";
    assert!(llama.contains(system), "{llama}");
    let gemma = ChatTemplate::built_in(BuiltInTemplate::Gemma, "", "").unwrap();
    let gemma = render(&gemma, &turns);
    let merged = format!("user\n{OBSERVATION_PREFIX}Odo leaves.\n\nWhere is he?<end_of_turn>");
    assert!(gemma.contains(&merged), "{gemma}");
}

#[reference_test]
fn published_templates_accept_observations_as_system_or_user_messages() {
    let turns = TALK_WITH_AN_OBSERVATION;
    for path in all_files("templates", "jinja") {
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let normal = template.normalized(&messages(&turns), true);
        let of_observation = normal.iter().find(|m| m.content.contains("Odo leaves.")).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let is_user = ["SmolLM3", "gemma", "Mistral"].iter().any(|part| name.contains(part));
        let role = if is_user { User } else { System };
        assert_eq!(of_observation.role, role, "{name}");
        assert_eq!(of_observation.content.contains(OBSERVATION_PREFIX), is_user, "{name}");
        let is_merged = ["gemma", "Mistral"].iter().any(|part| name.contains(part));
        assert_eq!(of_observation.content.contains("Where is he?"), is_merged, "{name}");
    }
}

/// The list is empty, the agent spoke last, or there is only an event: the prompt ends with a
/// message that the model can reply to.
#[test]
fn every_prompt_leads_to_a_reply() {
    let endings: [&[(Role, &str)]; 5] = [
        &[],
        &[(System, "You are Greta.")],
        &[(User, "Hi"), (Assistant, "Well met.")],
        &[(Observation, "Odo comes in.")],
        &[(System, "You are Greta."), (User, "Hi"), (Assistant, "Bye."), (Observation, "Rain.")],
    ];
    for (name, template) in templates() {
        // A system message that is moved or printed elsewhere is not at the end.
        let asked = render(&template, &[(User, "Q")]);
        let lead = asked.rsplit('Q').next().unwrap();
        for turns in endings {
            let text = render(&template, turns);
            assert!(text.ends_with(lead), "{name}: {turns:?} end in {text:?}, not in {lead:?}");
        }
    }
}

/// A built-in template prints the same text as a template of its family.
#[reference_test]
fn built_in_templates_are_those_of_their_families() {
    let talk = [(User, "Hi"), (Assistant, "Well met."), (User, "Bye")];
    let same = |published: &str, built_in: BuiltInTemplate| {
        for path in all_files("templates", "jinja") {
            if !path.to_string_lossy().contains(published) {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let published = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
            let built_in = ChatTemplate::built_in(built_in, "<s>", "</s>").unwrap();
            let (published, built_in) = (render(&published, &talk), render(&built_in, &talk));
            // Llama's starts with a date, Qwen's with a persona, ChatML has no BOS.
            assert!(published.ends_with(built_in.trim_start_matches("<s>")), "{built_in}");
        }
    };
    same("LFM2", BuiltInTemplate::Chatml);
    same("Qwen2.5", BuiltInTemplate::Chatml);
    same("Llama-3.2", BuiltInTemplate::Llama3);
    same("gemma", BuiltInTemplate::Gemma);
    same("Mistral", BuiltInTemplate::Mistral);
}
