//! Counts and times of a reply, as one line.

use std::fmt;

use walla::{FirstTokenTimes, Usage};

/// "9 prompt tokens (4 cached), first token after 84.1 ms (waiting 1.0, encoding 2.1, prefill 60.0,
/// decode 21.0); 30 tokens at 52.1 tokens/s"
pub struct Report(pub Usage);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = &self.0;
        write!(f, "{} prompt tokens", usage.prompt_tokens)?;
        if usage.cached_tokens > 0 {
            write!(f, " ({} cached)", usage.cached_tokens)?;
        }
        if usage.first_token_micros == 0 {
            return write!(f, ", no token");
        }
        let millis = |micros: u64| micros as f64 / 1e3;
        let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
            usage.first_token;
        write!(
            f,
            ", first token after {:.1} ms (waiting {:.1}, encoding {:.1}, prefill {:.1}, decode {:.1})",
            millis(usage.first_token_micros),
            millis(waiting_micros),
            millis(encoding_micros),
            millis(prefill_micros),
            millis(decode_micros),
        )?;
        // The first token is not part of the time that is left.
        let micros = usage.total_micros.saturating_sub(usage.first_token_micros).max(1);
        let tokens = usage.reply_tokens + usage.reasoning_tokens + usage.call_tokens;
        let rate = f64::from(tokens.saturating_sub(1)) * 1e6 / micros as f64;
        write!(f, "; {tokens} tokens")?;
        if usage.forced_tokens > 0 {
            write!(f, " ({} without a choice)", usage.forced_tokens)?;
        }
        write!(f, " at {rate:.1} tokens/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_parts_of_the_first_token() {
        let first_token = FirstTokenTimes {
            waiting_micros: 1_000,
            encoding_micros: 2_100,
            prefill_micros: 60_000,
            decode_micros: 21_000,
        };
        let usage = Usage {
            prompt_tokens: 9,
            cached_tokens: 4,
            reply_tokens: 29,
            reasoning_tokens: 2,
            call_tokens: 0,
            forced_tokens: 4,
            dropped_turns: 0,
            first_token_micros: 84_100,
            first_token,
            total_micros: 684_100,
        };
        assert_eq!(
            Report(usage).to_string(),
            "9 prompt tokens (4 cached), first token after 84.1 ms (waiting 1.0, encoding 2.1, \
             prefill 60.0, decode 21.0); 31 tokens (4 without a choice) at 50.0 tokens/s"
        );
        let silent = Usage { prompt_tokens: 3, ..Usage::default() };
        assert_eq!(Report(silent).to_string(), "3 prompt tokens, no token");
    }
}
