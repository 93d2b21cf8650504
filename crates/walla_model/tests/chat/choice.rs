//! Files whose template does not work, and templates that replace the file's.

use std::path::PathBuf;
use walla_reference_test::reference_test;

use crate::reference_data::data;
use walla_model::Gguf;
use walla_model::chat::{
    BuiltInTemplate, ChatTemplate, LoadError, LoadedText, MAX_SOURCE_BYTES, Message, RenderOptions,
    Role, TemplateChoice, TemplateError, TemplateState,
};
use walla_model::gguf::Writer;

/// A small vocabulary with ChatML's markers, and this chat template.
fn file(template: Option<&str>) -> Gguf {
    let tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| format!("<0x{byte:02X}>"))
        .chain(["<s>", "</s>", "<|im_start|>", "<|im_end|>", "▁"].map(str::to_owned))
        .collect();
    let mut kinds = vec![6; 256];
    kinds.extend([3, 3, 3, 3, 1]);
    let mut writer = Writer::new();
    writer
        .str("general.architecture", "llama")
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", tokens.iter().map(String::as_str))
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()])
        .u32("tokenizer.ggml.bos_token_id", 256)
        .u32("tokenizer.ggml.eos_token_id", 257);
    if let Some(template) = template {
        writer.str("tokenizer.chat_template", template);
    }
    let mut bytes = Vec::new();
    writer.begin(&mut bytes).unwrap().finish().unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

/// The defect of a file's template.
fn fault(template: &str) -> TemplateError {
    let loaded = LoadedText::from_gguf(&file(Some(template)), None, None).unwrap();
    assert!(loaded.template.is_none());
    match loaded.state {
        TemplateState::Unusable(reason) => reason,
        other => panic!("{template:?}: {other:?}"),
    }
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
 <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_working_template_of_the_file_is_used() {
    let loaded = LoadedText::from_gguf(&file(Some(CHATML)), None, None).unwrap();
    assert_eq!((loaded.state, loaded.warnings), (TemplateState::FromFile, vec![]));
    assert!(loaded.template.is_some());
    let loaded = LoadedText::from_gguf(&file(None), None, None).unwrap();
    assert_eq!(loaded.state, TemplateState::Absent);
    assert!(loaded.template.is_none() && !loaded.state.is_usable());
}

#[test]
fn templates_that_lose_messages_are_detected() {
    let leaves_out = |role| TemplateError::LeavesOut { role };
    for (template, expected) in [
        ("", TemplateError::Empty),
        (" \n", TemplateError::Empty),
        ("chatml", TemplateError::PlainText { text: "chatml".into() }),
        // Parts of a template.
        ("{{ bos_token }}", leaves_out(Role::User)),
        (
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
            leaves_out(Role::User),
        ),
        (
            "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}",
            leaves_out(Role::User),
        ),
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}",
            leaves_out(Role::User),
        ),
        (
            "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}",
            leaves_out(Role::Assistant),
        ),
        ("<|user|>{{ messages[-1].content }}<|assistant|>", leaves_out(Role::User)),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", TemplateError::Unmarked),
        // The text reversed or counted.
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content[::-1] }}{% endfor %}",
            leaves_out(Role::User),
        ),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content | length }}{% endfor %}",
            leaves_out(Role::User),
        ),
        // Parts of a conversation or of a text.
        (&of_messages("messages[:3]"), TemplateError::Forgets { messages: 41 }),
        (&of_messages("messages[-3:]"), TemplateError::Forgets { messages: 41 }),
        (&of_messages("messages[-30:]"), TemplateError::Forgets { messages: 41 }),
        (&of_messages("messages|reverse"), TemplateError::Disordered),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content[:16] }}{% endfor %}",
            TemplateError::Shortens { characters: 2_000 },
        ),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content[:1000] }}{% endfor %}",
            TemplateError::Shortens { characters: 2_000 },
        ),
    ] {
        assert_eq!(fault(template), expected, "{template:?}");
    }
}

fn of_messages(list: &str) -> String {
    format!("{{% for m in {list} %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{{% endfor %}}")
}

/// A template that loses a message only behind a system message: the persona becomes part of the
/// user's message.
#[test]
fn a_template_that_loses_messages_after_a_system_message_gets_none() {
    let template = "{% for m in messages %}\
         {% if messages[0].role != 'system' or loop.index < 5 or m.role != 'user' %}\
         <|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}<|assistant|>";
    let template = ChatTemplate::new(template, "", "").unwrap();
    assert_eq!(template.check(), Ok(()));
    assert!(!template.supports_system());
}

#[test]
fn a_template_without_the_beginning_of_a_reply_is_a_warning() {
    let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
         {% endfor %}";
    let warnings = |template: &str| {
        LoadedText::from_gguf(&file(Some(template)), None, None).unwrap().warnings.join("\n")
    };
    assert!(warnings(chatml).contains("add_generation_prompt"), "{}", warnings(chatml));
    let complete =
        format!("{chatml}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}");
    assert_eq!(warnings(&complete), "");
    assert_eq!(warnings(&format!("{chatml}<|im_start|>assistant\n")), "");
    for template in BuiltInTemplate::ALL {
        assert_eq!(warnings(template.source()), "", "{template}");
    }
}

#[test]
fn failing_templates_are_detected_with_the_reason() {
    for (template, words) in [
        ("{% for m in messages %}{{ m.content }", "invalid"),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content | nosuchfilter }}{% endfor %}",
            "nosuchfilter",
        ),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ nosuchfunction(m.content) }}{% endfor %}",
            "nosuchfunction",
        ),
        ("{{ raise_exception('not today') }}{{ messages[0].content }}", "not today"),
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}\
             {{ raise_exception('no replies') }}{% endif %}<|{{ m.role }}|>{{ m.content }}\
             {% endfor %}",
            "no replies",
        ),
        ("{{ messages[9].content }}", "fails"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}\
             {% endfor %}{% endfor %}",
            "come to an end",
        ),
        ("{% include 'other' %}{{ messages[0].content }}", "include"),
    ] {
        let reason = fault(template).to_string();
        assert!(reason.contains(words), "{template:?}: {reason}");
    }
    let too_long = format!("{{# {} #}}{CHATML}", "x".repeat(MAX_SOURCE_BYTES));
    assert!(matches!(fault(&too_long), TemplateError::SourceTooLong { .. }));
}

/// The template has another metadata type, as some converters write it.
#[test]
fn a_template_of_another_type_is_unusable() {
    let mut writer = Writer::new();
    writer
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", ["a"].into_iter())
        .u32("tokenizer.chat_template", 7);
    let mut bytes = Vec::new();
    writer.begin(&mut bytes).unwrap().finish().unwrap();
    let file = Gguf::from_bytes(bytes).unwrap();
    let (template, state) = ChatTemplate::resolve(&file, None).unwrap();
    assert!(template.is_none());
    assert!(state.to_string().contains("tokenizer.chat_template"), "{state}");
}

#[test]
fn template_faults_without_effect_on_conversations_are_warnings() {
    let template = "{% for m in messages %}{% if m.role == 'system' %}\
     {{ m.content | nosuchfilter }}{% endif %}<|{{ m.role }}|>{{ m.content }}{% if tools %}\
     {{ tools is nosuchtest }}{% endif %}{% endfor %}";
    let loaded = LoadedText::from_gguf(&file(Some(template)), None, None).unwrap();
    assert_eq!(loaded.state, TemplateState::FromFile);
    let warnings = loaded.warnings.join("\n");
    for words in ["persona", "unknown filters or tests: nosuchfilter, nosuchtest"] {
        assert!(warnings.contains(words), "{warnings}");
    }
}

#[reference_test]
fn the_reference_cases_load_and_a_chosen_template_works() {
    for name in ["06-template-does-not-compile.gguf", "07-template-empty.gguf"] {
        let file = Gguf::open(data(&format!("cases/{name}"))).unwrap();
        let loaded = LoadedText::from_gguf(&file, None, None).unwrap();
        assert!(loaded.template.is_none(), "{name}");
        assert!(matches!(loaded.state, TemplateState::Unusable(_)), "{name}");
        let choice = TemplateChoice::from("chatml");
        let chosen = LoadedText::from_gguf(&file, Some(&choice), None).unwrap();
        assert_eq!(chosen.state, TemplateState::Chosen("chatml".into()));
        assert_eq!(chosen.warnings, Vec::<String>::new());
        let hello = [Message::new(Role::User, "Hi")];
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let prompt = chosen.template.unwrap().render(&hello, &options).unwrap();
        let tokens = chosen.tokenizer.encode_prompt(&prompt).unwrap();
        let marker = chosen.tokenizer.special_token("<|im_start|>").unwrap();
        assert_eq!(tokens.iter().filter(|&&token| token == marker).count(), 2, "{name}");
    }
}

#[test]
fn every_built_in_template_works_with_every_file() {
    for template in BuiltInTemplate::ALL {
        for own in [None, Some(""), Some(CHATML)] {
            let loaded = LoadedText::from_gguf(&file(own), Some(&template.into()), None).unwrap();
            assert_eq!(loaded.state, TemplateState::Chosen(template.to_string()));
            let has_markers = template == BuiltInTemplate::Chatml;
            assert_eq!(loaded.warnings.is_empty(), has_markers, "{:?}", loaded.warnings);
        }
        assert_eq!(BuiltInTemplate::from_name(template.name()), Some(template));
    }
    assert_eq!(BuiltInTemplate::from_name("vicuna"), None);
}

#[test]
fn a_chosen_template_that_does_not_work_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let good = write("good.jinja", CHATML.as_bytes());
    let cases: [(PathBuf, &str); 6] = [
        (write("syntax.jinja", b"{% for"), "invalid"),
        (write("empty.jinja", b""), "empty"),
        (write("deaf.jinja", b"{{ bos_token }}"), "user's messages"),
        (write("bytes.jinja", b"\xff{{ messages }}"), "UTF-8"),
        (folder.path().to_owned(), "not a file"),
        (folder.path().join("nosuch.jinja"), "chatml, llama3, gemma and mistral"),
    ];
    for own in [None, Some(CHATML)] {
        let loaded = LoadedText::from_gguf(&file(own), Some(&good.clone().into()), None).unwrap();
        assert!(loaded.state.is_usable() && loaded.template.is_some());
        for (path, words) in &cases {
            let error =
                LoadedText::from_gguf(&file(own), Some(&path.clone().into()), None).unwrap_err();
            assert!(matches!(error, LoadError::Template { .. }));
            let text = error.to_string();
            assert!(text.contains(words) && text.contains(path.to_str().unwrap()), "{text}");
        }
        let source = TemplateChoice::Source("{{ 1 }}".into());
        assert!(LoadedText::from_gguf(&file(own), Some(&source), None).is_err());
    }
    let long = vec![b' '; MAX_SOURCE_BYTES + 1];
    let long = TemplateChoice::File(write("long.jinja", &long));
    let error = LoadedText::from_gguf(&file(None), Some(&long), None).unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
}

/// Opening a FIFO without a writer would block.
#[cfg(unix)]
#[test]
fn a_fifo_is_no_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo is a part of every Unix");
    let error = LoadedText::from_gguf(&file(None), Some(&path.into()), None).unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
}
