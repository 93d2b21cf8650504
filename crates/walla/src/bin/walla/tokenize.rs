//! `walla tokenize` and `walla detokenize`.

use std::io::Write;

use walla_model::tokenizer::EncodeOptions;
use walla_types::TokenId;

use crate::Failure;
use crate::args::{Detokenize, Tokenize};
use crate::input;
use crate::load;

pub fn run(arguments: &Tokenize) -> Result<(), Failure> {
    let tokenizer = load::tokenizer(&arguments.model, &arguments.pre)?;
    let text = match (&arguments.text, &arguments.file) {
        (_, Some(file)) => input::text(file)?,
        (text, None) => text.clone().unwrap_or_default(),
    };
    let options = EncodeOptions { add_special: arguments.bos, parse_special: arguments.special };
    let tokens = if arguments.untrusted {
        let bos = tokenizer.bos().filter(|_| arguments.bos && tokenizer.adds_bos());
        bos.into_iter().chain(tokenizer.encode_untrusted(&text)?).collect()
    } else {
        tokenizer.encode(&text, options)?
    };
    let ids: Vec<u32> = tokens.into_iter().map(|token| token.0).collect();
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&ids)?)?;
    Ok(())
}

pub fn run_back(arguments: &Detokenize) -> Result<(), Failure> {
    let tokenizer = load::tokenizer(&arguments.model, &arguments.pre)?;
    let ids: Vec<TokenId> = arguments.ids.iter().copied().map(TokenId).collect();
    writeln!(std::io::stdout(), "{}", tokenizer.decode(&ids)?)?;
    Ok(())
}
