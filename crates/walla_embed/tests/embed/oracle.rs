//! Ids and vectors equal the results of another implementation.

use walla_embed::{EmbedderOptions, LongTexts, Pooling, Purpose};
use walla_model::Gguf;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::common::{MODELS, data, embed, load, model, references, texts, worst};

#[test]
fn ids_equal_the_reference() {
    for name in MODELS {
        let gguf = Gguf::open(model(name)).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let options = EncodeOptions { add_special: true, parse_special: false };
        for reference in references(&data(&format!("{name}.json"))) {
            let ids = tokenizer.encode(&reference.text, options).unwrap();
            let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
            // References end at the context, with the token of the end.
            let cut = reference.ids.len() - 1;
            assert_eq!(ids[..cut], reference.ids[..cut], "{name}: {:?}", reference.text);
            assert_eq!(ids.last(), reference.ids.last(), "{name}: {:?}", reference.text);
        }
    }
}

#[test]
fn vectors_equal_the_reference() {
    // Q8_0 rounds weights and activations to 8 bits; F16 rounds keys and values only.
    for (name, least) in MODELS.into_iter().zip([0.999_99, 0.998, 0.999_9]) {
        let references = references(&data(&format!("{name}.json")));
        let embedder = load(name, EmbedderOptions::default());
        let found = embed(&embedder, texts(&references));
        let (cosine, text) = worst(&found, &references);
        println!("{name}: {cosine} for {text:?}");
        assert!(cosine >= least, "{name}: {cosine} for {text:?}");
        for (found, reference) in found.iter().zip(&references) {
            assert_eq!(found.tokens as usize, reference.ids.len(), "{:?}", reference.text);
            let length: f32 = found.vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
        assert_eq!(embedder.dimensions(), 32);
        assert_eq!(embedder.model_name(), Some(format!("random {name}").as_str()));
    }
}

#[test]
fn a_vector_does_not_depend_on_the_batch_or_the_threads() {
    for name in MODELS {
        let references = references(&data(&format!("{name}.json")));
        let mut all = texts(&references);
        let alone: Vec<_> = {
            let embedder = load(name, EmbedderOptions::default());
            all.iter().flat_map(|text| embed(&embedder, vec![text.clone()])).collect()
        };
        for (threads, max_batch_tokens) in [(1, 512), (2, 512), (2, 1), (1, 7), (3, 65_536)] {
            let options = EmbedderOptions { threads, max_batch_tokens, ..Default::default() };
            let embedder = load(name, options);
            assert_eq!(embed(&embedder, all.clone()), alone, "{name} {threads}");
            all.reverse();
            let mut reversed = embed(&embedder, all.clone());
            reversed.reverse();
            all.reverse();
            assert_eq!(reversed, alone, "{name} {threads} {max_batch_tokens}");
        }
    }
}

#[test]
fn long_texts_are_cut_and_reported_or_refused() {
    let long = vec!["rain".to_owned(), "the night ".repeat(600)];
    for (name, context) in MODELS.into_iter().zip([48, 48, 256]) {
        let embedder = load(name, EmbedderOptions::default());
        let found = embed(&embedder, long.clone());
        assert_eq!(embedder.context_tokens(), context);
        assert!(!found[0].is_cut && found[1].is_cut, "{name}");
        assert_eq!(found[1].tokens as usize, context, "{name}");
        let refuse = EmbedderOptions { long_texts: LongTexts::Refuse, ..Default::default() };
        let error = load(name, refuse).embed_blocking(long.clone(), Purpose::Plain).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("text 1 has ") && message.ends_with(&context.to_string()));
        let short = EmbedderOptions { max_context_tokens: Some(8), ..Default::default() };
        assert_eq!(embed(&load(name, short), long.clone())[1].tokens, 8, "{name}");
    }
}

#[test]
fn prefixes_precede_texts_of_their_purpose() {
    let options = EmbedderOptions {
        query_prefix: "find: ".to_owned(),
        document_prefix: "the ".to_owned(),
        ..Default::default()
    };
    let embedder = load("bert-mean-f32", options);
    let of = |purpose, text: &str| {
        embedder.embed_blocking(vec![text.to_owned()], purpose).unwrap()[0].vector.clone()
    };
    assert_eq!(of(Purpose::Query, "key"), of(Purpose::Plain, "find: key"));
    assert_eq!(of(Purpose::Document, "key"), of(Purpose::Plain, "the key"));
    assert_ne!(of(Purpose::Query, "key"), of(Purpose::Plain, "key"));
}

#[test]
fn the_pooling_can_be_replaced_and_changes_the_hash() {
    let pooled = |pooling| load("bert-mean-f32", EmbedderOptions { pooling, ..Default::default() });
    let (mean, first) = (pooled(None), pooled(Some(Pooling::First)));
    assert_eq!((mean.pooling(), first.pooling()), (Pooling::Mean, Pooling::First));
    assert_ne!(mean.model_hash(), first.model_hash());
    assert_eq!(mean.model_hash(), load("bert-mean-f32", Default::default()).model_hash());
    assert_ne!(mean.model_hash(), load("bert-cls-q8_0", Default::default()).model_hash());
    let text = || vec!["the key".to_owned()];
    assert_ne!(embed(&mean, text()), embed(&first, text()));
}
