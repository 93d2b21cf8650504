//! The reasoning markers of a model, and the state at the start of its replies.

use crate::tokenizer_common::{
    CONTROL, NORMAL, USER_DEFINED, all_files, byte_level, sentence_piece,
};
use proptest::prelude::*;
use walla_model::chat::{
    ChatTemplate, Marker, Message, ReasoningFormat, ReasoningMarkers, RenderOptions, ReplyStart,
    Role,
};
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;

const CHATML: &str = "{% for m in messages %}\
<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "", "<|im_end|>").unwrap()
}

/// ChatML with this text after the generation prompt.
fn chatml_with(end: &str) -> ChatTemplate {
    template(&CHATML.replace("assistant\n{% endif %}", &format!("assistant\n{end}{{% endif %}}")))
}

/// The byte-level vocabulary with these special tokens.
fn with_tokens(texts: &[&str], kind: i64) -> Tokenizer {
    let mut lists = byte_level("llama-bpe");
    lists.tokens.iter_mut().filter(|text| *text == "<think>").for_each(|text| *text = "<x>".into());
    for text in texts {
        lists.add(text, kind, 0.0);
    }
    lists.tokenizer()
}

fn start(
    (tokenizer, template): (&Tokenizer, &ChatTemplate),
    (persona, question): (&str, &str),
    enable_thinking: bool,
) -> ReplyStart {
    let markers = ReasoningMarkers::new(tokenizer, Some(template)).expect("it has markers");
    let options =
        RenderOptions { add_generation_prompt: true, enable_thinking, ..RenderOptions::default() };
    let system = (!persona.is_empty()).then_some(Message::new(Role::System, persona));
    let question = Message::new(Role::User, question);
    let messages: Vec<_> = system.into_iter().chain([question]).collect();
    markers.start_of(tokenizer, &template.render(&messages, &options).unwrap())
}

/// The format of a marker's block.
fn format_of(markers: &ReasoningMarkers, text: &str, tokenizer: &Tokenizer) -> ReasoningFormat {
    let token = tokenizer.special_token(text).and_then(|token| markers.of_token(token));
    let texts = markers.texts().iter().find(|(other, _)| *other == text).map(|(_, marker)| *marker);
    match token.or(texts) {
        Some(Marker::Open(format) | Marker::Close(format)) => format,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_model_without_markers_has_none() {
    let tokenizer = with_tokens(&[], NORMAL);
    assert_eq!(ReasoningMarkers::new(&tokenizer, Some(&template(CHATML))), None);
    assert_eq!(ReasoningMarkers::new(&tokenizer, None), None);
    // A part of the channel format is not a channel format: Phi 3 ends its turns with <|end|>.
    let phi = with_tokens(&["<|end|>", "<|start|>"], CONTROL);
    assert_eq!(ReasoningMarkers::new(&phi, Some(&template(CHATML))), None);
    // Nor is the text of a marker that only ordinary tokens spell.
    let spelled = with_tokens(&["<think>", "</think>"], NORMAL);
    assert_eq!(ReasoningMarkers::new(&spelled, Some(&template(CHATML))), None);
}

#[test]
fn special_tokens_are_markers_and_their_texts_are_not() {
    for kind in [USER_DEFINED, CONTROL] {
        let tokenizer = with_tokens(&["<think>", "</think>", "[THINK]", "[/THINK]"], kind);
        for template in [template(CHATML), chatml_with("<think>\n")] {
            let markers = ReasoningMarkers::new(&tokenizer, Some(&template)).unwrap();
            assert_eq!(markers.texts(), []);
            for (open, close) in [("<think>", "</think>"), ("[THINK]", "[/THINK]")] {
                let format = format_of(&markers, open, &tokenizer);
                let [open, close] =
                    [open, close].map(|text| tokenizer.special_token(text).unwrap());
                assert_eq!(markers.of_token(open), Some(Marker::Open(format)));
                assert_eq!(markers.of_token(close), Some(Marker::Close(format)));
                assert!(markers.closing(format).contains(&close));
            }
            assert_eq!(markers.of_token(tokenizer.special_token("<|im_end|>").unwrap()), None);
        }
    }
}

#[test]
fn without_special_tokens_template_markers_are_matched_by_text() {
    let sources = ["{{ c.split('</think>')[-1] }}", "<think>\n"];
    for tokenizer in
        [with_tokens(&[], NORMAL), with_tokens(&["<think>", "</think>"], NORMAL), spm()]
    {
        for source in sources {
            let template = chatml_with(&format!("{{# {source} #}}"));
            let markers = ReasoningMarkers::new(&tokenizer, Some(&template)).unwrap();
            let texts: Vec<_> = markers.texts().iter().map(|(text, _)| *text).collect();
            assert_eq!(texts, ["<think>", "</think>"], "{source}");
            let format = format_of(&markers, "</think>", &tokenizer);
            let closing = tokenizer.decode(markers.closing(format)).unwrap();
            assert_eq!(closing.trim_start_matches([' ', '\n']), "</think>\n\n");
        }
    }
    // One of the two is a special token, the other is matched by its text.
    let half = with_tokens(&["<think>"], USER_DEFINED);
    let markers = ReasoningMarkers::new(&half, Some(&chatml_with("<think>\n"))).unwrap();
    assert_eq!(markers.texts().iter().map(|(text, _)| *text).collect::<Vec<_>>(), ["</think>"]);
}

/// A SentencePiece-style vocabulary without markers.
fn spm() -> Tokenizer {
    let mut lists = sentence_piece();
    lists.tokens.iter_mut().filter(|text| *text == "<think>").for_each(|text| *text = "<x>".into());
    lists.tokenizer()
}

#[test]
fn a_marker_that_the_vocabulary_cannot_encode_cannot_be_closed() {
    let mut lists = sentence_piece();
    // Without byte tokens and without "/".
    lists.tokens.iter_mut().filter(|text| text.starts_with("<0x")).for_each(|t| t.insert(0, '#'));
    for text in &mut lists.tokens {
        if text.contains('/') && text != "</s>" {
            *text = format!("#{}", text.replace('/', "#"));
        }
    }
    lists
        .types
        .iter_mut()
        .filter(|ty| **ty == crate::tokenizer_common::BYTE)
        .for_each(|ty| *ty = NORMAL);
    lists.tokens.iter_mut().filter(|text| *text == "<think>").for_each(|text| *text = "<x>".into());
    let tokenizer = lists.tokenizer();
    let markers = ReasoningMarkers::new(&tokenizer, Some(&chatml_with("<think>\n"))).unwrap();
    let format = format_of(&markers, "</think>", &tokenizer);
    assert_eq!(markers.closing(format), []);
}

#[test]
fn a_reply_begins_where_the_generation_prompt_ends() {
    let tokenizers =
        [with_tokens(&["<think>", "</think>"], USER_DEFINED), with_tokens(&[], NORMAL)];
    for tokenizer in &tokenizers {
        let reasons = |end: &str| {
            let template = chatml_with(end);
            let found = start((tokenizer, &template), ("P", "Q"), false);
            let markers = ReasoningMarkers::new(tokenizer, Some(&template)).unwrap();
            assert_eq!(markers.opens_unasked(), found.is_silent(), "{end:?}");
            match found {
                ReplyStart::Reasoning(format) => {
                    assert_eq!(format, format_of(&markers, "<think>", tokenizer));
                    "reasoning"
                }
                ReplyStart::AfterReasoning => "after",
                ReplyStart::Speech => "speech",
                ReplyStart::Header(_) => "header",
            }
        };
        assert_eq!(reasons("<think>\n"), "reasoning");
        assert_eq!(reasons("<think>"), "reasoning");
        assert_eq!(reasons("<think>\nOkay, "), "reasoning");
        assert_eq!(reasons("<think>\n\n</think>\n\n"), "after");
        assert_eq!(reasons("</think>"), "after");
        assert_eq!(reasons("<think>\n\n</think>\n\nWell, "), "speech");
        assert_eq!(reasons("{# <think> #}"), "speech");
    }
}

#[test]
fn an_instruction_that_names_the_markers_opens_nothing() {
    for tokenizer in [with_tokens(&["<think>", "</think>"], CONTROL), with_tokens(&[], NORMAL)] {
        let source =
            format!("<|im_start|>system\nWrite your thoughts behind <think>.<|im_end|>\n{CHATML}");
        let template = template(&source);
        for question in ["Q", ""] {
            let found = start((&tokenizer, &template), ("", question), false);
            assert_eq!(found, ReplyStart::Speech, "{question:?}");
        }
    }
}

#[test]
fn headers_and_channels_are_recognized() {
    let gemma = with_tokens(&["<|channel>", "<channel|>"], CONTROL);
    let of =
        |tokenizer: &Tokenizer, end: &str| start((tokenizer, &chatml_with(end)), ("P", "Q"), false);
    let markers = ReasoningMarkers::new(&gemma, Some(&chatml_with(""))).unwrap();
    let format = format_of(&markers, "<|channel>", &gemma);
    assert!(format.has_header());
    assert_eq!(of(&gemma, "<|channel>"), ReplyStart::Header(format));
    assert_eq!(of(&gemma, "<|channel>thought\n"), ReplyStart::Reasoning(format));
    assert_eq!(of(&gemma, "<|channel>thought\n<channel|>"), ReplyStart::AfterReasoning);

    let gpt = with_tokens(
        &["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"],
        CONTROL,
    );
    let channels = ReasoningFormat::CHANNELS;
    for (end, expected) in [
        ("<|start|>assistant", ReplyStart::Header(channels)),
        ("<|start|>assistant<|channel|>", ReplyStart::Header(channels)),
        ("<|start|>assistant<|channel|>analysis<|message|>", ReplyStart::Reasoning(channels)),
        ("<|start|>assistant<|channel|>final<|message|>", ReplyStart::AfterReasoning),
        ("<|start|>assistant<|message|>", ReplyStart::AfterReasoning),
        ("", ReplyStart::Speech),
    ] {
        assert_eq!(of(&gpt, end), expected, "{end}");
    }
    let markers = ReasoningMarkers::new(&gpt, None).unwrap();
    let closing = markers.closing(channels);
    let marker = |at: usize| closing.get(at).and_then(|&token| markers.of_token(token));
    assert_eq!((marker(0), marker(1)), (Some(Marker::End), Some(Marker::Start)));
    assert_eq!(marker(closing.len() - 1), Some(Marker::Message));
}

/// Published templates with a switch: the markers are their vocabularies' special tokens.
#[reference_test]
fn reasoning_switches_of_published_templates_are_found() {
    let tokenizer = with_tokens(&["<think>", "</think>"], USER_DEFINED);
    for path in all_files("templates", "jinja") {
        let template = template(&std::fs::read_to_string(&path).unwrap());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let has_switch = ["Qwen3", "SmolLM3"].iter().any(|family| name.contains(family));
        assert_eq!(template.has_thinking_switch(), has_switch, "{name}");
        let persona = if template.supports_system() { "You are Greta." } else { "" };
        let starts = [false, true].map(|on| start((&tokenizer, &template), (persona, "What?"), on));
        let off = if has_switch { ReplyStart::AfterReasoning } else { ReplyStart::Speech };
        assert_eq!(starts, [off, ReplyStart::Speech], "{name}");
    }
}

/// Granite 3 and DeepSeek V3.1 call the switch `thinking`.
#[test]
fn the_reasoning_switch_has_two_names() {
    for name in ["enable_thinking", "thinking"] {
        let template = chatml_with(&format!("{{% if {name} %}}<think>\n{{% endif %}}"));
        assert!(template.has_thinking_switch(), "{name}");
    }
}

/// Text from players: markers, parts of markers, and text that templates print around markers.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<think>",
        "</think>",
        "[THINK]",
        "<|channel>",
        "thought\n",
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "<|message|>",
        "<thi",
        "nk>",
        "<|im_end|>",
        "<|im_start|>",
        "\n",
        " ",
        "<",
        "a",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn untrusted_text_never_opens_a_block(
        persona in hostile(),
        question in hostile(),
        thinking: bool,
    ) {
        let all = ["<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>",
            "<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
        let texts = (persona.as_str(), question.as_str());
        for tokenizer in [with_tokens(&all, CONTROL), with_tokens(&[], NORMAL)] {
            let speaks = chatml_with("{# <think> #}");
            prop_assert_eq!(start((&tokenizer, &speaks), texts, thinking), ReplyStart::Speech);
            let closed = chatml_with("<think>\n\n</think>\n\n");
            let found = start((&tokenizer, &closed), texts, thinking);
            prop_assert_eq!(found, ReplyStart::AfterReasoning);
            // Nor does it prevent the template from opening a block.
            let opens = chatml_with("<think>\n");
            prop_assert!(start((&tokenizer, &opens), texts, thinking).is_silent());
        }
    }
}
