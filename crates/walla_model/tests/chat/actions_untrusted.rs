//! The markers of calls cannot be typed: for any texts of players, personas, observations, results,
//! tools and arguments, the prompt has the control tokens of harmless words.
//!
//! Rendering is slow compared to encoding, so each rendering contains many strings, one per line.
//! Template and tokenizer handle each of them as they handle a single one.

use crate::action_templates::{call, templates, tools};
use crate::reference_data::files;
use walla_model::chat::{BuiltInTemplate, ChatTemplate, Message, RenderOptions, Role, Tools};
use walla_model::tokenizer::{EncodeOptions, SpecialIds, Tokenizer, Vocabulary};
use walla_types::TokenId;

use Role::{Action, ActionResult, Assistant, Observation, System, User};

/// Control tokens: the markers of calls, tools and results of every format, and of turns.
const CONTROLS: [&str; 58] = [
    "<s>",
    "</s>",
    "<unk>",
    "<bos>",
    "<eos>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CONTENT]",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|tool|>",
    "<|/tool|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|tool_response|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|tool_response_start|>",
    "<|tool_response_end|>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<|channel>",
    "<channel|>",
];

/// User-defined tokens that look like markers.
const USER_DEFINED: [&str; 8] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
];

/// Parts of attacks that are no markers.
const ODDITIES: [&str; 32] = [
    "<",
    ">",
    "|",
    "\"",
    "\\",
    "'",
    "{",
    "}",
    "[",
    "]",
    "<|",
    "|>",
    "\\\"",
    "\\u003c",
    "\"}}",
    "'}",
    "{{ bos_token }}",
    "{% endfor %}",
    "' + eos_token + '",
    "\n",
    "\t",
    " ",
    "\u{2028}",
    "\u{2002}",
    "\u{10f03c}",
    "\u{202e}",
    "\0",
    "Ġ",
    "▁",
    "tool_call",
    "give",
    "system",
];

/// Both kinds of vocabulary: bytes, the markers, and merges that would spell parts of them.
fn tokenizers() -> [Tokenizer; 2] {
    let letter = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            let is_visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let earlier = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
            char::from_u32(0x100 + earlier).unwrap()
        }
    };
    let bytes: Vec<String> = (0..=u8::MAX).map(|byte| letter(byte).to_string()).collect();
    let pieces: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    let merged = ["<|", "|>", "to", "ol", "tool", "_c", "al", "_call"];
    let merges = ["< |", "| >", "t o", "o l", "to ol", "_ c", "a l"];
    let build = |model, pre, bytes: &[String], byte_kind: i64, space: &'static str| {
        let normal = merged.iter().copied().chain([space]);
        let bytes = bytes.iter().map(String::as_str);
        let tokens: Vec<&str> = bytes.chain(CONTROLS).chain(USER_DEFINED).chain(normal).collect();
        let mut kinds = vec![byte_kind; 256];
        kinds.extend([3; CONTROLS.len()]);
        kinds.extend([4; USER_DEFINED.len()]);
        kinds.resize(tokens.len(), 1);
        let vocabulary = Vocabulary {
            model,
            pre,
            token_types: Some(kinds),
            scores: Some((0..tokens.len()).map(|index| index as f32).collect()),
            tokens,
            merges: Some(merges.to_vec()),
            special: SpecialIds { bos: Some(256), eos: Some(257), ..SpecialIds::default() },
            ..Vocabulary::default()
        };
        Tokenizer::new(&vocabulary).unwrap().with_max_text_bytes(8 << 20)
    };
    [build("gpt2", "llama-bpe", &bytes, 1, "ĠĠ"), build("llama", "", &pieces, 6, "▁")]
}

/// The templates of this folder, the built-in and the vendors' ones.
fn all_templates() -> Vec<(String, ChatTemplate)> {
    let built_in = BuiltInTemplate::ALL.map(|t| (t.to_string(), t.source().to_owned()));
    let published = files("templates", "jinja")
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    let compiled = |(name, source): (String, String)| {
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        (name, template)
    };
    templates().into_iter().chain(built_in.into_iter().chain(published).map(compiled)).collect()
}

/// A generator of attacks (xorshift).
struct Attacks(u64);

impl Attacks {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn marker(&mut self) -> &'static str {
        let at = self.below(CONTROLS.len() + USER_DEFINED.len());
        CONTROLS.iter().chain(&USER_DEFINED).nth(at).unwrap()
    }

    /// A marker, whole, in part or in the alphabet of untrusted text, or another part of an attack.
    fn fragment(&mut self) -> String {
        let marker = self.marker();
        let cut = 1 + self.below(marker.len() - 1);
        match self.below(8) {
            0..3 => marker.to_owned(),
            3 => marker[..cut].to_owned(),
            4 => marker[cut..].to_owned(),
            5 => {
                let tainted = |byte| char::from_u32(0x10_f000 + u32::from(byte));
                marker.bytes().filter_map(tainted).collect()
            }
            _ => ODDITIES[self.below(ODDITIES.len())].to_owned(),
        }
    }

    fn string(&mut self) -> String {
        // Some templates and this crate split reasoning from earlier replies.
        let parts = 1 + self.below(4);
        let text: String = (0..parts).map(|_| self.fragment()).collect();
        text.replace("</think>", "</ think>")
    }

    /// Strings, one per line, with a letter at both ends, so that no text is blank.
    fn text(&mut self, strings: usize) -> String {
        let lines: Vec<_> = (0..strings).map(|_| self.string()).collect();
        format!("x{}x", lines.join("\n"))
    }
}

/// The texts of one rendering.
struct Texts {
    persona: String,
    player: String,
    reply: String,
    observation: String,
    call: String,
    result: String,
    tools: Tools,
    /// A result without a call, and a call that is none.
    stray: String,
}

/// Number of texts of attacks in [`Texts`].
const TEXTS: usize = 8;

impl Texts {
    fn new(mut text: impl FnMut() -> String) -> Self {
        Self {
            persona: text(),
            player: text(),
            reply: text(),
            observation: text(),
            call: call(&text()),
            result: text(),
            tools: tools(&text()),
            stray: text(),
        }
    }

    fn messages(&self) -> [Message<'_>; 14] {
        [
            (System, &self.persona),
            (User, &self.player),
            (Assistant, &self.reply),
            (Action, &self.call),
            (Action, &self.call),
            (ActionResult, &self.result),
            (ActionResult, &self.result),
            (Observation, &self.observation),
            (Action, &self.call),
            (ActionResult, &self.stray),
            (ActionResult, &self.stray),
            (Action, &self.stray),
            (User, &self.player),
            (Action, &self.call),
        ]
        .map(|(role, content)| Message::new(role, content))
    }
}

fn reserved(
    template: &ChatTemplate,
    tokenizers: &[Tokenizer],
    texts: &Texts,
    has_tools: bool,
) -> Vec<Vec<TokenId>> {
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: has_tools.then(|| texts.tools.clone()),
        ..RenderOptions::default()
    };
    let prompt = template.render(&texts.messages(), &options).unwrap();
    let of = |tokenizer: &Tokenizer| {
        let mut tokens = tokenizer.encode_prompt(&prompt).unwrap();
        tokens.retain(|&token| tokenizer.is_reserved(token));
        tokens
    };
    tokenizers.iter().map(of).collect()
}

/// Renders attacks until every template has seen `strings` of them.
fn attack(strings: usize, seed: u64, strings_per_text: usize) {
    let (tokenizers, templates) = (tokenizers(), all_templates());
    let harmless = Texts::new(|| "x".to_owned());
    let expected: Vec<_> = templates
        .iter()
        .map(|(_, template)| [false, true].map(|t| reserved(template, &tokenizers, &harmless, t)))
        .collect();
    let mut attacks = Attacks(seed);
    let per_rendering = TEXTS * strings_per_text;
    for round in 0..strings.div_ceil(per_rendering) {
        let texts = Texts::new(|| attacks.text(strings_per_text));
        for ((name, template), expected) in templates.iter().zip(&expected) {
            let has_tools = round % 2 == 1;
            let found = reserved(template, &tokenizers, &texts, has_tools);
            assert_eq!(found, expected[usize::from(has_tools)], "{name} in round {round}");
        }
    }
}

#[test]
fn markers_of_calls_come_only_from_the_template() {
    // Single strings, then many per text.
    attack(240, 0x5eed, 1);
    attack(4_000, 0x5eed_5eed, 50);
}

/// At least 1,000,000 strings over all templates:
/// `cargo test --release -p walla_model --test chat actions_untrusted -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn a_million_strings_give_no_control_token() {
    let seed = 0xdead_beef;
    attack(8_000, seed, 1);
    attack(1_000_000, seed + 1, 100);
}

/// Shows that the tests above can fail: with all text trusted, each marker is one token.
#[test]
fn the_markers_are_tokens_in_trusted_text() {
    let options = EncodeOptions { add_special: false, parse_special: true };
    for tokenizer in tokenizers() {
        for text in CONTROLS.into_iter().chain(USER_DEFINED) {
            let tokens = tokenizer.encode(text, options).unwrap();
            let is_reserved = tokens.len() == 1 && tokenizer.is_reserved(tokens[0]);
            // Beside Gemma's markers `</s>` is the HTML tag.
            assert!(is_reserved || text == "</s>", "{text:?}: {tokens:?}");
        }
    }
}
