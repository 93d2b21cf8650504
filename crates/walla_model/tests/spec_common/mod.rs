//! Models that tests modify.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use walla_doubles::synth::{self, Mixture, Model};
use walla_model::{Gguf, ModelSpec, SpecError, TensorInfo, Value, gguf::Writer};
use walla_types::TensorType;

/// A model to modify: keys and values to set (or, with `None`, to remove), tensors to change.
pub struct Spoilt {
    pub gguf: Gguf,
    pub values: Vec<(String, Option<Value<'static>>)>,
    pub tensors: Vec<(String, TensorType, Vec<u64>)>,
    /// All numbers of the tensors named `ssm_a`.
    pub decay: f32,
    /// All numbers of the tensors named `layer_output_scale.weight`.
    pub layer_scale: f32,
}

pub fn spoil(model: &Model) -> Spoilt {
    let small = Model {
        width: 64,
        layers: if model.gemma4.is_some() { 4 } else { 2 },
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        hidden: 96,
        vocab: 260,
        experts: model.experts.map(|e| synth::Experts { count: 6, used: 2, hidden: 32, ..e }),
        delta_nets: model.delta_nets.map(|d| synth::DeltaNets {
            key_heads: 1,
            value_heads: 2,
            head_dim: 32,
            attention_interval: 2,
            ..d
        }),
        // Two layers with their own keys, two that share them; the odd ones have full attention.
        gemma4: model.gemma4.map(|_| synth::Gemma4 {
            full_interval: 2,
            full_head_dim: 32,
            shared_layers: 2,
            shared_hidden: 128,
            input_width: 8,
        }),
        ..model.clone()
    };
    let file = synth::write(&small, Mixture::F16, 1, Vec::new()).unwrap();
    Spoilt::from(Gguf::from_bytes(file).unwrap())
}

pub fn llama() -> Spoilt {
    spoil(&Model::LLAMA_3_2_1B)
}

/// A model of the reference data.
pub fn reference(name: &str) -> Spoilt {
    Spoilt::from(Gguf::open(crate::reference_data::data(&format!("models/{name}"))).unwrap())
}

impl From<Gguf> for Spoilt {
    fn from(gguf: Gguf) -> Self {
        let tensor =
            |t: TensorInfo<'_>| (t.name.to_owned(), t.ty.unwrap(), t.shape.dims().to_vec());
        let tensors = gguf.tensors().map(tensor).collect();
        Self { gguf, values: Vec::new(), tensors, decay: -1.0, layer_scale: 1.0 }
    }
}

impl Spoilt {
    pub fn set(mut self, key: &str, value: Value<'static>) -> Self {
        self.values.push((key.to_owned(), Some(value)));
        self
    }

    pub fn remove(mut self, key: &str) -> Self {
        self.values.push((key.to_owned(), None));
        self
    }

    /// The same model with the name and the keys of another architecture.
    pub fn named(mut self, architecture: &'static str) -> Self {
        let old: &str = self.gguf.require("general.architecture").unwrap();
        let prefix = format!("{old}.");
        let mut writer = Writer::new();
        for (key, value) in self.gguf.metadata().filter(|(key, _)| *key != "general.architecture") {
            match key.strip_prefix(&prefix) {
                Some(suffix) => writer.value(&format!("{architecture}.{suffix}"), value),
                None => writer.value(key, value),
            };
        }
        writer.str("general.architecture", architecture);
        let file = writer.begin(Vec::new()).unwrap().finish().unwrap();
        self.gguf = Gguf::from_bytes(file).unwrap();
        self
    }

    pub fn tensor(
        mut self,
        name: &str,
        change: impl Fn(&mut (String, TensorType, Vec<u64>)),
    ) -> Self {
        change(self.tensors.iter_mut().find(|t| t.0 == name).expect(name));
        self
    }

    pub fn add(mut self, name: &str, dims: &[u64]) -> Self {
        self.tensors.push((name.to_owned(), TensorType::F32, dims.to_vec()));
        self
    }

    pub fn drop(mut self, name: &str) -> Self {
        self.tensors.retain(|t| t.0 != name);
        self
    }

    /// The file, with F32 tensors full of `1.0`, except for [`decay`](Self::decay) and
    /// [`layer_scale`](Self::layer_scale) (and arbitrary data in other types).
    pub fn file(self) -> Vec<u8> {
        let mut writer = Writer::new();
        let is_set = |key: &str| self.values.iter().any(|(k, _)| k == key);
        for (key, value) in self.gguf.metadata().filter(|(key, _)| !is_set(key)) {
            writer.value(key, value);
        }
        for (key, value) in &self.values {
            value.map(|value| writer.value(key, value));
        }
        for (name, ty, dims) in &self.tensors {
            writer.tensor(name, *ty, dims);
        }
        let mut data = writer.begin(Vec::new()).unwrap();
        for (name, ty, dims) in &self.tensors {
            let number: f32 = match name {
                _ if name.ends_with("ssm_a") => self.decay,
                _ if name.ends_with("layer_output_scale.weight") => self.layer_scale,
                _ => 1.0,
            };
            let bytes = ty.row_bytes(dims.iter().product::<u64>() as usize).unwrap();
            let ones: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(bytes).collect();
            data.tensor(&ones).unwrap();
        }
        data.finish().unwrap()
    }

    pub fn spec(self) -> Result<ModelSpec, SpecError> {
        ModelSpec::from_gguf(&Gguf::from_bytes(self.file()).unwrap(), 1024)
    }

    pub fn message(self) -> String {
        self.spec().expect_err("this model is bad").to_string()
    }
}
