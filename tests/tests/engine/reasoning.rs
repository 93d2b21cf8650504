//! A model that writes its reasoning markers as plain text, with a template that opens the block:
//! text before `</think>` is not speech.

use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_device::Registry;
use walla_doubles::synth;
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, FinishReason, FrameBudget, ModelSource, Pacing,
    Prompt, ReplyEvent, Speaker, Turn, Usage,
};
use walla_types::Sampling;

/// The demo model with another chat template. Its vocabulary has no token for the markers.
fn demo_with_template(template: &str) -> &'static [u8] {
    let file = Gguf::from_static(walla_demo_model::GGUF).expect("the shipped file is valid");
    let key = "tokenizer.chat_template";
    let copy = synth::rewrite(&file, &[key], |writer| _ = writer.str(key, template));
    copy.expect("it was readable before").leak()
}

/// ChatML that ends with an open block.
const OPENS: &str = "{%- for message in messages -%}\
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}\
    {%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n<think>\n' -}}{%- endif -%}";

/// Examples of questions with reasoning and an answer: the demo model continues the pattern.
const EXAMPLES: &str = "Q: 2+2?\n<think>\nTwo and two make four.\n</think>\nFour.\n\nQ: 3+3?\n<think>\n\
    Three and three make six.\n</think>\nSix.";

/// Greedy, without the end of a turn.
fn without_end() -> Sampling {
    let file = Gguf::from_static(walla_demo_model::GGUF).expect("the shipped file is valid");
    let tokenizer = Tokenizer::from_gguf(&file).expect("valid");
    let end = tokenizer.special_token("<|im_end|>").expect("ChatML");
    Sampling::greedy().to_builder().bias(end, -100.0).build().expect("valid")
}

#[derive(Debug, Default, PartialEq)]
struct Heard {
    speech: String,
    reasoning: String,
    end: Option<(FinishReason, Usage)>,
}

/// The replies of one agent to successive questions.
fn replies(spec: AgentSpec, questions: &[&str]) -> Vec<Heard> {
    let cpu = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    let registry = Registry::new().with(CpuBackend::new(cpu));
    let options = EngineOptions {
        max_agents: Some(1),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(demo_with_template(OPENS)))
    };
    let engine = Engine::start_with(options, registry).expect("options are valid");
    let client = engine.client(Pacing::FreeRunning).expect("there is room");
    let agent = client.new_agent();
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
    let ask = |question: &&str| {
        let prompt = Prompt::Chat((*question).to_owned());
        let reply_id = client.new_reply_id();
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
        let (mut heard, start) = (Heard::default(), Instant::now());
        while heard.end.is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "no end: {heard:?}");
            match client.try_recv().map(|event| event.what) {
                Some(ReplyEvent::Delta { text, .. }) => heard.speech.push_str(&text),
                Some(ReplyEvent::Reasoning { text, .. }) => heard.reasoning.push_str(&text),
                Some(ReplyEvent::Finished { reason, usage }) => heard.end = Some((reason, usage)),
                Some(ReplyEvent::Failed(error)) => panic!("{error}"),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        heard
    };
    questions.iter().map(ask).collect()
}

#[test]
fn plain_text_reasoning_is_not_speech_and_ends_at_its_limit() {
    let spec = |max_reasoning_tokens| AgentSpec {
        sampling: Sampling::greedy(),
        max_reply_tokens: 40,
        max_reasoning_tokens,
        ..AgentSpec::new(EXAMPLES)
    };
    // The demo model does not know the markers: without a limit it ends its turn in the block. The
    // engine closes the block then, and none of its text is speech.
    for heard in replies(spec(512), &["Q: 1+1?", "Who are you?"]) {
        let Some((_, usage)) = heard.end else { panic!("{heard:?}") };
        assert!(usage.reasoning_tokens > 0);
        assert!(!heard.reasoning.is_empty());
        assert!(!heard.speech.contains(heard.reasoning.trim()), "{heard:?}");
        assert!(!heard.speech.contains("think>"), "{heard:?}");
    }
    // With a limit the engine closes the block, in the tokens of this vocabulary, and the model
    // speaks. It cannot end its turn: the words behind the markers are not part of this test.
    let spec = |tokens| AgentSpec { sampling: without_end(), ..spec(tokens) };
    let limited = replies(spec(4), &["Q: 1+1?", "Who are you?", "Who are you?"]);
    for heard in &limited {
        let Some((FinishReason::Length, usage)) = heard.end else { panic!("{heard:?}") };
        assert_eq!(usage.reasoning_tokens, 4, "{heard:?}");
        assert!(
            heard.speech.len() > 4 && !heard.speech.starts_with(char::is_whitespace),
            "{heard:?}"
        );
        assert!(!heard.speech.contains("think>"), "{heard:?}");
    }
    // Reasoning is not prefilled again: only persona, questions and speech are part of the prompt.
    let prompt_tokens =
        |heard: &Heard| heard.end.as_ref().map_or(0, |(_, usage)| usage.prompt_tokens);
    let turn = |speaker, text: &str| Turn::new(speaker, text.to_owned());
    let history = vec![turn(Speaker::User, "Q: 1+1?"), turn(Speaker::Agent, &limited[0].speech)];
    let told = replies(AgentSpec { turns: history, ..spec(4) }, &["Who are you?"]);
    assert_eq!(prompt_tokens(&told[0]), prompt_tokens(&limited[1]));
    assert_eq!((&told[0].speech, &told[0].reasoning), (&limited[1].speech, &limited[1].reasoning));
}
