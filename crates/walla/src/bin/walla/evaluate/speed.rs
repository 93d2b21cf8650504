//! Token rates, first words, and memory.

use std::time::Instant;

use walla::{Agent, Reply, ReplyEvent, Sampling, Usage};

use super::*;

/// Tokens of a measured reply.
const TOKENS: u32 = 64;

/// Rounds. The median counts.
const ROUNDS: usize = 3;

/// Personas without a common beginning, so that no prompt is in the cache.
const PERSONAS: [&str; ROUNDS] = [
    "Greta is the smith of Emberfall, and you are Greta.",
    "Odo keeps the Blue Lantern in Ferrow, and you are Odo.",
    "From the river port of Sill comes Ada, and you are Ada.",
];

/// About 100 tokens behind each persona.
const STORY: &str = " The bridge is closed since the storm, so the wagons wait at the gate, and \
    the market is empty. A horseshoe costs 3 silver, nails cost 1 silver, a sword costs 40 silver \
    and a healing potion costs 10 silver. You speak in short sentences, you are polite, and you \
    are tired, because you worked all night. Your brother is a guard of the castle, and your \
    daughter wants to be a sailor.";

pub struct Speed {
    /// Milliseconds from the ask to the first text, and tokens of the whole prompt: of a new agent,
    /// and of the next ask, with all but the question in the cache.
    first_words: [(f64, u32); 2],
    /// Agents, and the tokens per second of all of them.
    rates: [(usize, f64); 2],
    memory: Value,
}

pub async fn measure(engine: &Engine) -> Result<Speed, Failure> {
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for persona in PERSONAS {
        let agent = engine.agent_with(spec(engine, format!("{persona}{STORY}"))?);
        cold.push(first_words(agent.ask("Good morning! Who are you?")).await?);
        warm.push(first_words(agent.ask("What do you sell?")).await?);
    }
    let mut agents = Vec::new();
    for n in 0..AGENTS {
        let agent = engine.agent_with(spec(engine, format!("You are number {n}.{STORY}"))?);
        // The persona is in the cache then.
        agent.ask("Good morning!").finish().await?;
        agents.push(agent);
    }
    let first_words = [median(cold), median(warm)];
    let rates = [(1, rate(&agents[..1]).await?), (AGENTS, rate(&agents).await?)];
    Ok(Speed { first_words, rates, memory: memory(engine) })
}

fn spec(engine: &Engine, persona: String) -> Result<AgentSpec, Failure> {
    let mut sampling = Sampling::builder().temperature(0.0);
    // A reply ends at its limit.
    for token in engine.tokenizer().into_iter().flat_map(|t| t.end_of_generation_tokens()) {
        sampling = sampling.bias(token, -100.0);
    }
    let sampling = sampling.build()?;
    Ok(AgentSpec {
        sampling,
        max_reply_tokens: TOKENS,
        max_reasoning_tokens: 0,
        ..AgentSpec::new(persona)
    })
}

/// Milliseconds until the first text, and tokens of the prompt. Waits for the end of the reply.
async fn first_words(mut reply: Reply) -> Result<(f64, u32), Failure> {
    let start = Instant::now();
    let mut first = None;
    while let Some(event) = reply.next_event().await {
        match event {
            ReplyEvent::Delta { .. } if first.is_none() => first = Some(start.elapsed()),
            ReplyEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    let (_, usage) = reply.end().ok_or("a reply without an end")?;
    let millis = first.ok_or("a reply without text")?.as_secs_f64() * 1e3;
    Ok((millis, usage.prompt_tokens))
}

fn median<T: PartialOrd + Copy>(mut values: Vec<(f64, T)>) -> (f64, T) {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    values[values.len() / 2]
}

/// Tokens per second of these agents together: the median of the rounds.
async fn rate(agents: &[Agent]) -> Result<f64, Failure> {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let replies: Vec<Reply> =
            agents.iter().map(|agent| agent.ask("Tell me the story of your life.")).collect();
        let mut sum = 0.0;
        for reply in replies {
            sum += tokens_per_second(&reply.finish().await?.usage);
        }
        rates.push((sum, ()));
    }
    Ok(median(rates).0)
}

/// The rate behind the first token.
fn tokens_per_second(usage: &Usage) -> f64 {
    let micros = usage.total_micros.saturating_sub(usage.first_token_micros).max(1);
    let tokens = usage.reply_tokens + usage.reasoning_tokens + usage.call_tokens;
    f64::from(tokens.saturating_sub(1)) * 1e6 / micros as f64
}

/// Bytes of the process, as far as the system reports them, and of the device.
fn memory(engine: &Engine) -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of_process = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib << 10)
    };
    let of_device = engine.model().map(|card| card.memory).unwrap_or_default();
    json!({
        "process_resident_bytes": of_process("VmRSS:"),
        "process_peak_bytes": of_process("VmHWM:"),
        "weight_bytes": of_device.weight_bytes,
        "cache_bytes": of_device.cache_bytes,
        "workspace_bytes": of_device.workspace_bytes,
        "host_table_bytes": of_device.host_table_bytes,
    })
}

impl Speed {
    pub fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let [(cold, cold_tokens), (warm, warm_tokens)] = self.first_words;
        writeln!(
            out,
            "first words after {cold:.0} ms (new agent, {cold_tokens} tokens), {warm:.0} ms (next ask, \
             {warm_tokens} tokens)"
        )?;
        for (agents, rate) in self.rates {
            writeln!(
                out,
                "{rate:.1} tokens/s with {agents} agent{}",
                if agents == 1 { "" } else { "s" }
            )?;
        }
        let mb = |name: &str| match self.memory[name].as_u64() {
            Some(bytes) => format!("{:.0} MB", bytes as f64 / 1e6),
            None => "unknown".to_owned(),
        };
        writeln!(
            out,
            "memory: process {} (peak {}); weights {}, cache {}, workspace {}\n",
            mb("process_resident_bytes"),
            mb("process_peak_bytes"),
            mb("weight_bytes"),
            mb("cache_bytes"),
            mb("workspace_bytes"),
        )?;
        Ok(())
    }

    pub fn to_json(&self) -> Value {
        let first = self.first_words.map(|(ms, tokens)| json!({"ms": ms, "prompt_tokens": tokens}));
        let [cold, warm] = first;
        let rates =
            self.rates.map(|(agents, rate)| json!({"agents": agents, "tokens_per_second": rate}));
        json!({"first_words": {"cold": cold, "warm": warm}, "rates": rates, "memory": self.memory})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_does_not_count_the_first_token_and_its_time() {
        let usage = Usage {
            reply_tokens: 11,
            first_token_micros: 500_000,
            total_micros: 1_500_000,
            ..Usage::default()
        };
        assert_eq!(tokens_per_second(&usage), 10.0);
        assert_eq!(median(vec![(3.0, 'c'), (1.0, 'a'), (2.0, 'b')]), (2.0, 'b'));
    }
}
