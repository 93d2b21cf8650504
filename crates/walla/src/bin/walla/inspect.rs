//! `walla inspect`: shows the contents of a model file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value as Json, json};
use walla_device::KvType;
use walla_model::chat::{ChatTemplate, LoadError, LoadedText, Message, Role, TemplateChoice};
use walla_model::embedding::{EmbeddingModel, EmbeddingSpec, Pooling, is_embedding_model};
use walla_model::spec::{Layer, Mixer};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec, Value};

use crate::Failure;
use crate::args::Inspect;
use crate::chat::WAYS_OUT;
use crate::load;

/// Maximum number of array elements shown.
const MAX_SHOWN: usize = 8;

pub fn run(arguments: &Inspect) -> Result<(), Failure> {
    let file = load::open_quietly(&arguments.model)?;
    let report = report(&arguments.model, &file, arguments.template.template.as_ref());
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{report}")?;
        return Ok(());
    }
    print(&mut out, &report, 0)?;
    Ok(())
}

fn report(path: &Path, file: &Gguf, choice: Option<&TemplateChoice>) -> Json {
    let text = LoadedText::from_gguf(file, choice, None);
    let metadata: serde_json::Map<String, Json> =
        file.metadata().map(|(key, value)| (key.to_owned(), to_json(&value))).collect();
    json!({
        "file": path.display().to_string(),
        "file_bytes": file.file_bytes(),
        "metadata": metadata,
        "tensors": tensors(file),
        "spec": spec(file),
        "tokenizer": tokenizer(file, &text),
        "chat_template": template(file, choice, &text),
        "warnings": warnings(file, choice, &text),
    })
}

/// Defects of file, tokenizer and template that do not prevent loading.
fn warnings(
    file: &Gguf,
    choice: Option<&TemplateChoice>,
    loaded: &Result<LoadedText, LoadError>,
) -> Vec<String> {
    if let Ok(loaded) = loaded {
        return loaded.warnings.clone();
    }
    // Warnings of the parts that can be loaded.
    let tokenizer = Tokenizer::from_gguf(file).ok();
    let of_tokenizer = tokenizer.iter().flat_map(Tokenizer::warnings).cloned();
    let template = ChatTemplate::resolve(file, choice).ok().and_then(|(template, _)| template);
    let of_template = template.iter().flat_map(ChatTemplate::warnings).cloned();
    file.warnings().into_iter().chain(of_tokenizer).chain(of_template).collect()
}

/// Bytes and number of tensors by type, and the list of tensors.
pub fn tensors(file: &Gguf) -> Json {
    let mut types: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut list = Vec::new();
    for (index, tensor) in file.tensors().enumerate() {
        let ty = tensor.ty.map_or_else(walla_types::UnknownTensorType::label, |ty| ty.to_string());
        let entry = types.entry(ty.clone()).or_default();
        let bytes = file.tensor_data(index).map_or(0, |data| data.len() as u64);
        entry.0 += 1;
        entry.1 += bytes;
        list.push(
            json!({"name": tensor.name, "type": ty, "dims": tensor.shape.dims(), "bytes": bytes}),
        );
    }
    let types: serde_json::Map<String, Json> = types
        .into_iter()
        .map(|(ty, (count, bytes))| (ty, json!({"tensors": count, "bytes": bytes})))
        .collect();
    json!({"count": list.len(), "types": types, "list": list})
}

/// The specification, or why walla cannot run the model.
pub fn spec(file: &Gguf) -> Json {
    if is_embedding_model(file) {
        return embedding(file);
    }
    let spec = match ModelSpec::from_gguf(file, u32::MAX) {
        Ok(spec) => spec,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let attention = spec.layers.iter().filter(|layer| matches!(layer.mixer, Mixer::Attention(_)));
    let shares = |layer: &&Layer| match &layer.mixer {
        Mixer::Attention(attention) => attention.own_keys().is_none(),
        Mixer::ShortConv(_) | Mixer::DeltaNet(_) => false,
    };
    // All layers with experts have the same shape.
    let experts = spec.experts().next().map(|experts| {
        json!({
            "count": experts.count,
            "used": experts.used,
            "hidden": experts.hidden,
            "layers": spec.experts().count(),
        })
    });
    json!({
        "architecture": format!("{:?}", spec.architecture).to_lowercase(),
        "name": spec.name,
        "width": spec.width,
        "layers": spec.layers.len(),
        "attention_layers": attention.count(),
        "shared_kv_layers": spec.layers.iter().filter(shares).count(),
        "layer_input_width": spec.layer_inputs.map(|inputs| inputs.width),
        "experts": experts,
        "vocab": spec.vocab,
        "context_train": spec.context_train,
        "tied_embedding": spec.is_tied(),
        "recurrent": spec.is_recurrent(),
        "kv_bytes_per_token_f16": spec.kv_numbers_per_token() * KvType::F16.bytes(),
        "state_bytes_per_sequence": spec.state_numbers_per_sequence() * size_of::<f32>(),
    })
}

/// The specification of an embedding model.
fn embedding(file: &Gguf) -> Json {
    let spec = match EmbeddingSpec::from_gguf(file, u32::MAX) {
        Ok(spec) => spec,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let (architecture, layers, heads) = match &spec.model {
        EmbeddingModel::Encoder(encoder) => ("bert", encoder.layers.len(), Some(encoder.heads)),
        EmbeddingModel::Decoder(decoder) => {
            (decoder.architecture.name(), decoder.layers.len(), None)
        }
    };
    json!({
        "architecture": architecture,
        "use": "embeddings: `walla embed`, walla::Embedder",
        "name": spec.name(),
        "pooling": spec.pooling.map(Pooling::name),
        "dimensions": spec.width(),
        "layers": layers,
        "heads": heads,
        "vocab": spec.vocab(),
        "context_train": spec.context(),
    })
}

fn tokenizer(file: &Gguf, loaded: &Result<LoadedText, LoadError>) -> Json {
    let text = |key: &str| file.find::<&str>(key).ok().flatten();
    let (tokenizer, markers) = match loaded {
        Ok(loaded) => (loaded.tokenizer.clone(), &*loaded.reserved_markers),
        Err(LoadError::Vocabulary(error)) => return json!({"error": error.to_string()}),
        // The selected template does not work.
        Err(LoadError::Template { .. }) => match Tokenizer::from_gguf(file) {
            Ok(tokenizer) => (tokenizer, &[][..]),
            Err(error) => return json!({"error": error.to_string()}),
        },
    };
    let markers: Vec<Json> = markers
        .iter()
        .map(|&token| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(token));
            json!({"token": token.0, "text": text})
        })
        .collect();
    let ends: Vec<u32> = tokenizer.end_of_generation_tokens().map(|token| token.0).collect();
    json!({
        "model": text("tokenizer.ggml.model"),
        "pre": text("tokenizer.ggml.pre"),
        "tokens": tokenizer.vocab_size(),
        "bos": tokenizer.bos().map(|token| token.0),
        "eos": tokenizer.eos().map(|token| token.0),
        "end_of_generation": ends,
        "adds_bos": tokenizer.adds_bos(),
        // Stored as ordinary tokens, although the chat template uses them as markers.
        "reserved_markers": markers,
    })
}

/// The template that works, or the reason why none does and the remedy.
fn template(
    file: &Gguf,
    choice: Option<&TemplateChoice>,
    loaded: &Result<LoadedText, LoadError>,
) -> Json {
    let present = file.get("tokenizer.chat_template").is_some();
    if is_embedding_model(file) {
        return json!({"present": present, "used": null});
    }
    let resolved = match loaded {
        Ok(loaded) => Ok((loaded.template.clone(), loaded.state.clone())),
        Err(LoadError::Template { reason, .. }) => Err(reason.clone()),
        Err(LoadError::Vocabulary(_)) => ChatTemplate::resolve(file, choice),
    };
    let (state, template) = match resolved {
        Ok((Some(template), state)) => (state, template),
        Ok((None, state)) => {
            let error = state.to_string();
            return json!({"present": present, "error": error, "ways_out": WAYS_OUT});
        }
        Err(reason) => {
            let chosen = choice.map(ToString::to_string);
            let error = reason.to_string();
            return json!({"present": present, "chosen": chosen, "error": error});
        }
    };
    json!({
        "present": present,
        "used": state.to_string(),
        "takes_system_messages": template.supports_system(),
        "observations_are": role_of_observations(&template),
    })
}

/// The template's role for observations.
fn role_of_observations(template: &ChatTemplate) -> &'static str {
    let message = |role| Message::new(role, "x");
    let messages = [Role::User, Role::Assistant, Role::Observation].map(message);
    match template.normalized(&messages, false).last().map(|message| message.role) {
        Some(Role::System) => "system messages",
        _ => "user messages",
    }
}

fn to_json(value: &Value<'_>) -> Json {
    if let Some(integer) = value.as_integer() {
        return i64::try_from(integer).map_or_else(|_| json!(integer.to_string()), |i| json!(i));
    }
    match value {
        Value::Bool(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::String(value) => json!(value),
        Value::Array(array) => {
            let shown: Vec<Json> =
                array.iter().take(MAX_SHOWN).map(|value| to_json(&value)).collect();
            json!({"length": array.len(), "first": shown})
        }
        other => json!(other.to_string()),
    }
}

/// Prints indented lines: `key: value`, one tensor per line.
fn print(out: &mut dyn Write, value: &Json, depth: usize) -> std::io::Result<()> {
    let Json::Object(map) = value else { return Ok(()) };
    let pad = "  ".repeat(depth);
    for (key, value) in map {
        match value {
            Json::Object(inner) if inner.contains_key("length") && inner.contains_key("first") => {
                writeln!(out, "{pad}{key}: {} of {}", inner["first"], inner["length"])?;
            }
            Json::Object(_) => {
                writeln!(out, "{pad}{key}:")?;
                print(out, value, depth + 1)?;
            }
            Json::Array(items) if key == "warnings" => {
                for item in items {
                    writeln!(out, "{pad}warning: {}", item.as_str().unwrap_or_default())?;
                }
            }
            Json::Array(items) if key == "list" => {
                for item in items {
                    let field = |name: &str| item[name].to_string().replace('"', "");
                    let (name, ty) = (field("name"), field("type"));
                    writeln!(
                        out,
                        "{pad}{name:<40} {ty:<8} {} {} bytes",
                        item["dims"], item["bytes"]
                    )?;
                }
            }
            Json::String(text) if text.contains('\n') => {
                writeln!(out, "{pad}{key}: ({} bytes)", text.len())?;
            }
            other => writeln!(out, "{pad}{key}: {other}")?,
        }
    }
    Ok(())
}
