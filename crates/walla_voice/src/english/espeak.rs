//! Symbols of misaki, which `loqui-g2p` writes, as espeak's `en-us` voice writes them, with which
//! Piper voices were trained. Both are sets of the International Phonetic Alphabet with own letters
//! for some diphthongs.
//!
//! Source: misaki's `EN_PHONES.md`, and the output of both programs for the same words.

/// The symbols of a word.
pub(super) fn of_misaki(phonemes: &str) -> String {
    let symbols: Vec<char> = phonemes.chars().collect();
    let mut out = String::with_capacity(phonemes.len() + 8);
    let mut at = 0;
    while let Some(&symbol) = symbols.get(at) {
        let next = symbols.get(at + 1).copied();
        match symbol {
            'A' => out.push_str("eɪ"),
            'I' => out.push_str("aɪ"),
            'W' => out.push_str("aʊ"),
            'Y' => out.push_str("ɔɪ"),
            'O' => out.push_str("oʊ"),
            'Q' => out.push_str("əʊ"),
            'ʤ' => out.push_str("dʒ"),
            'ʧ' => out.push_str("tʃ"),
            'T' => out.push('ɾ'),
            'ᵊ' => out.push('ə'),
            'ɜ' if next == Some('ɹ') => {
                out.push_str("ɜː");
                if precedes_vowel(&symbols, at + 2) {
                    out.push('ɹ');
                }
                at += 1;
            }
            'ə' if next == Some('ɹ') && !precedes_vowel(&symbols, at + 2) => {
                out.push('ɚ');
                at += 1;
            }
            'i' => {
                let is_stressed = at.checked_sub(1).is_some_and(|at| is_stress(&symbols, at));
                let is_last = next.is_none_or(|next| !next.is_alphabetic());
                let is_short = !is_stressed && (is_last || precedes_vowel(&symbols, at + 1));
                out.push_str(if is_short { "i" } else { "iː" });
            }
            'u' => out.push_str("uː"),
            'ɑ' => out.push_str("ɑː"),
            'ɔ' => out.push_str("ɔː"),
            '“' | '”' => out.push('"'),
            '—' | '…' => out.push(','),
            '❓' => {}
            other => out.push(other),
        }
        at += 1;
    }
    // British symbols have their length.
    out.replace("ːː", "ː")
}

fn is_stress(symbols: &[char], at: usize) -> bool {
    symbols.get(at).is_some_and(|symbol| matches!(symbol, 'ˈ' | 'ˌ'))
}

/// Whether a vowel is at this place, perhaps behind a mark of stress.
fn precedes_vowel(symbols: &[char], at: usize) -> bool {
    let at = if is_stress(symbols, at) { at + 1 } else { at };
    symbols.get(at).is_some_and(|symbol| "AIWYOQaæɑɐɔəɛɜiɪuʊʌᵊᵻ".contains(*symbol))
}

#[cfg(test)]
mod tests {
    use super::of_misaki;

    #[test]
    fn words_have_the_symbols_of_espeak() {
        for (misaki, espeak) in [
            ("həlˈO", "həlˈoʊ"),
            ("wˈɜɹld", "wˈɜːld"),
            ("dˈɑktəɹ", "dˈɑːktɚ"),
            ("sˈɪTi", "sˈɪɾi"),
            ("ʤˈʌʤ", "dʒˈʌdʒ"),
            ("skˈi", "skˈiː"),
            ("hˈɜɹi", "hˈɜːɹi"),
            ("“", "\""),
            ("❓", ""),
        ] {
            assert_eq!(of_misaki(misaki), espeak);
        }
    }
}
