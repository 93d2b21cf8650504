//! `walla embed`.

use std::io::Write;

use serde_json::json;
use tokio::io::BufReader;
use walla::{Embedder, EmbedderLoadError, EmbedderOptions, Embedding, LongTexts, Purpose, cosine};

use crate::Failure;
use crate::args::Embed;
use crate::input;
use crate::load;
use crate::note::note;

/// Texts that are computed together; of standard input this many are held in memory.
const PART: usize = 256;
/// Maximum number of texts of a matrix, which is quadratic.
const MAX_MATRIX: usize = 2_048;

pub fn run(arguments: &Embed) -> Result<(), Failure> {
    let options = EmbedderOptions {
        threads: arguments.threads,
        low_priority: false,
        max_context_tokens: arguments.context,
        long_texts: if arguments.refuse_long { LongTexts::Refuse } else { LongTexts::Cut },
        query_prefix: arguments.prefix.clone(),
        pooling: arguments.pooling,
        ..EmbedderOptions::default()
    };
    let file = load::open(&arguments.model)?;
    let embedder = Embedder::from_gguf(file, options);
    let embedder = embedder.map_err(|error| match error {
        EmbedderLoadError::NoPooling => {
            let file = arguments.model.display();
            let what = "names no pooling, so it may be a model that generates text";
            format!("{file}: it {what}; otherwise add --pooling mean, first or last").into()
        }
        error => load::named(&arguments.model, &error),
    })?;
    load::block_on(write_all(arguments, &embedder))
}

async fn write_all(arguments: &Embed, embedder: &Embedder) -> Result<(), Failure> {
    let mut writer = Writer { embedder, is_matrix: arguments.similarity, written: 0, kept: vec![] };
    let mut part = Vec::new();
    for text in &arguments.texts {
        if text != "-" {
            part.push(text.clone());
            continue;
        }
        let mut lines = BufReader::new(tokio::io::stdin());
        while let Some(line) = input::whole_line(&mut lines).await? {
            part.push(line);
            if part.len() >= PART {
                writer.add(std::mem::take(&mut part)).await?;
            }
        }
    }
    writer.add(part).await?;
    writer.finish()
}

/// Computes and writes texts in parts.
struct Writer<'a> {
    embedder: &'a Embedder,
    is_matrix: bool,
    written: usize,
    /// For the matrix.
    kept: Vec<(String, Embedding)>,
}

impl Writer<'_> {
    async fn add(&mut self, texts: Vec<String>) -> Result<(), Failure> {
        if self.is_matrix && self.kept.len() + texts.len() > MAX_MATRIX {
            return Err(format!("more than {MAX_MATRIX} texts for a matrix").into());
        }
        let found = self.embedder.embed(texts.clone(), Purpose::Query).await;
        // Texts are counted from 1 here, as in the notes below.
        let found = found.map_err(|error| error.behind(self.written + 1))?;
        let mut out = std::io::stdout().lock();
        for (text, found) in texts.into_iter().zip(found) {
            if found.is_cut {
                let (nth, tokens) = (self.written + 1, found.tokens);
                note!("walla: text {nth} was cut to {tokens} tokens, the model's context");
            }
            if self.is_matrix {
                self.kept.push((text, found));
            } else {
                let Embedding { vector, tokens, is_cut } = found;
                let line = json!({"text": text, "tokens": tokens, "cut": is_cut, "vector": vector});
                writeln!(out, "{line}")?;
            }
            self.written += 1;
        }
        Ok(())
    }

    /// Writes the matrix: a line for each text, with the text behind its cosines.
    fn finish(self) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        for (text, row) in &self.kept {
            for (_, column) in &self.kept {
                write!(out, "{:6.3} ", cosine(&row.vector, &column.vector))?;
            }
            writeln!(out, " {}", text.escape_debug())?;
        }
        Ok(())
    }
}
