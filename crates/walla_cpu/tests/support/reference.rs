//! The same decoder in naive f64.

use walla_device::DeltaShape;
use walla_types::{Activation, ExpertScore, RopePairs};

use super::{
    EPS, ExpertShape, GROWTH, HEADS, Harness, KV_HEADS, LAYER_SCALE, LAYERS, MAGNITUDE, SOFT_CAP,
    SUPPRESSED, Shape, TABLE_SCALE, TAPS, Weight,
};

impl Harness {
    /// Logits of every position of a whole sequence, in f64.
    pub fn reference(&self, tokens: &[i32]) -> Vec<Vec<f64>> {
        let Shape { width, hidden, head_dim, .. } = self.shape;
        let (mut weights, mut norms) = (self.weights.iter(), self.norms.iter());
        let embedding = weights.next().unwrap();
        let row = |token: &i32| &embedding.values[*token as usize * width..][..width];
        let mut xs: Vec<Vec<f64>> = tokens
            .iter()
            .map(|token| row(token).iter().map(|x| f64::from(*x) * 1.5).collect())
            .collect();
        let inputs = self.shape.inputs.map(|part| {
            let [table, projection] = [(); 2].map(|()| weights.next().unwrap());
            let norm = norms.next().unwrap();
            let all = tokens.iter().zip(&xs).map(|(token, x)| {
                let row = &table.values[*token as usize * LAYERS * part..][..LAYERS * part];
                let parts = apply(projection, x);
                let normed: Vec<f64> = parts.chunks(part).flat_map(|z| rms(z, norm)).collect();
                let scale = f64::from(TABLE_SCALE);
                normed.iter().zip(row).map(|(n, t)| n + scale * f64::from(*t)).collect()
            });
            (part, all.collect::<Vec<Vec<f64>>>())
        });
        // Keys and values of the first layer.
        let mut shared = None;
        for layer in 0..LAYERS {
            if let (1, Some(delta)) = (layer, self.shape.delta) {
                let norm = norms.next().unwrap();
                let parts = [(); 5].map(|()| weights.next().unwrap());
                let head_norm = norms.next().unwrap();
                let ns: Vec<_> = xs.iter().map(|x| rms(x, norm)).collect();
                for (x, y) in xs.iter_mut().zip(self.delta_net(delta, parts, head_norm, &ns)) {
                    add(x, &y);
                }
            } else if layer == 1 {
                let norm = norms.next().unwrap();
                let input = [(); 3].map(|()| weights.next().unwrap());
                let n = |x: &Vec<f64>| rms(x, norm);
                let parts: Vec<[Vec<f64>; 3]> =
                    xs.iter().map(|x| input.map(|w| apply(w, &n(x)))).collect();
                let out = weights.next().unwrap();
                for p in 0..xs.len() {
                    let mut y = vec![0.0; width];
                    for tap in 0..TAPS {
                        let Some(at) = (p + tap + 1).checked_sub(TAPS) else { continue };
                        for i in 0..width {
                            let u = parts[at][0][i] * parts[at][2][i];
                            y[i] += f64::from(self.kernel[i * TAPS + tap]) * u * parts[p][1][i];
                        }
                    }
                    add(&mut xs[p], &apply(out, &y));
                }
            } else {
                let norm = norms.next().unwrap();
                let (wq, nq) = (weights.next().unwrap(), norms.next().unwrap());
                let is_shared = layer == 2 && self.shape.inputs.is_some();
                let own = (!is_shared).then(|| {
                    let [wk, wv] = [(); 2].map(|()| weights.next().unwrap());
                    (wk, norms.next().unwrap(), wv)
                });
                let out = weights.next().unwrap();
                let post = norms.next().unwrap();
                let turned = |w: &Weight, n: &[f32], x: &[f64], p: usize| -> Vec<f64> {
                    let all = apply(w, x);
                    all.chunks(head_dim).flat_map(|head| self.rotate(&rms(head, n), p)).collect()
                };
                let ns: Vec<Vec<f64>> = xs.iter().map(|x| rms(x, norm)).collect();
                let qs: Vec<_> = ns.iter().enumerate().map(|(p, x)| turned(wq, nq, x, p)).collect();
                if let Some((wk, nk, wv)) = own {
                    let keys = ns.iter().enumerate().map(|(p, x)| turned(wk, nk, x, p));
                    let value = |x: &Vec<f64>| -> Vec<f64> {
                        let plain = apply(wv, x);
                        let ones = vec![1.0; head_dim];
                        match self.shape.inputs {
                            Some(_) => plain.chunks(head_dim).flat_map(|v| rms(v, &ones)).collect(),
                            None => plain,
                        }
                    };
                    let values = ns.iter().map(value);
                    shared = Some((keys.collect::<Vec<_>>(), values.collect::<Vec<_>>()));
                }
                let (ks, vs) = shared.as_ref().unwrap();
                let window = if layer == 0 { self.shape.window } else { None };
                for p in 0..xs.len() {
                    let first = (p + 1).saturating_sub(window.unwrap_or(u32::MAX) as usize);
                    let mut y = vec![0.0; HEADS * head_dim];
                    for h in 0..HEADS {
                        let kv = h * KV_HEADS / HEADS;
                        let q = &qs[p][h * head_dim..][..head_dim];
                        // Layer 2 has the growing scores.
                        let periods = (p / GROWTH.period_tokens as usize) as f64;
                        let growth = 1.0 + f64::from(GROWTH.slope) * (1.0 + periods).ln();
                        let growth = if layer == 0 { 1.0 } else { growth };
                        let dot = |at: usize| -> f64 {
                            let k = &ks[at][kv * head_dim..][..head_dim];
                            growth * q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>()
                                / (head_dim as f64).sqrt()
                        };
                        let scores: Vec<f64> = (first..=p).map(|at| dot(at).exp()).collect();
                        let sum: f64 = scores.iter().sum();
                        for (at, score) in (first..=p).zip(&scores) {
                            for d in 0..head_dim {
                                y[h * head_dim + d] += score / sum * vs[at][kv * head_dim + d];
                            }
                        }
                    }
                    let projected = apply(out, &y);
                    add(&mut xs[p], &rms(&projected, post));
                }
            }
            let norm = norms.next().unwrap();
            if let (2, Some(experts)) = (layer, self.shape.experts) {
                let parts = [(); 4].map(|()| weights.next().unwrap());
                for x in &mut xs {
                    let y = self.mixture(&experts, parts, &rms(x, norm));
                    add(x, &y);
                }
            } else {
                let [gate, up] = [(); 2].map(|()| weights.next().unwrap());
                let is_gated = layer == 1 && self.shape.delta.is_some();
                let factor = is_gated.then(|| weights.next().unwrap());
                let down = weights.next().unwrap();
                for x in &mut xs {
                    let n = rms(x, norm);
                    let (g, u) = (apply(gate, &n), apply(up, &n));
                    let factor = factor.map_or(1.0, |weight| sigmoid(apply(weight, &n)[0]));
                    let hidden = (0..hidden).map(|i| self.activate(g[i]) * u[i] * factor);
                    let h: Vec<f64> = hidden.collect();
                    let y = apply(down, &h);
                    add(x, &y);
                }
            }
            let Some((part, inputs)) = &inputs else { continue };
            let [gate, output] = [(); 2].map(|()| weights.next().unwrap());
            let post = norms.next().unwrap();
            for (x, e) in xs.iter_mut().zip(inputs) {
                let e = &e[layer * part..][..*part];
                let gates = apply(gate, x);
                let h: Vec<f64> = gates.iter().zip(e).map(|(g, e)| gelu(*g) * e).collect();
                add(x, &rms(&apply(output, &h), post));
                x.iter_mut().for_each(|x| *x *= f64::from(LAYER_SCALE));
            }
        }
        let norm = norms.next().unwrap();
        let mut logits: Vec<_> = xs.iter().map(|x| apply(embedding, &rms(x, norm))).collect();
        if self.shape.inputs.is_some() {
            let cap = f64::from(SOFT_CAP);
            for row in &mut logits {
                row.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
                SUPPRESSED.iter().for_each(|token| row[*token as usize] = f64::NEG_INFINITY);
            }
        }
        logits
    }

    /// Gated DeltaNet with its gate and projection, for every position of a sequence.
    fn delta_net(
        &self,
        shape: DeltaShape,
        [input, alpha, beta, gate, out]: [&Weight; 5],
        head_norm: &[f32],
        ns: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let [keys, heads, dim] =
            [shape.key_heads, shape.value_heads, shape.head_dim].map(|n| n as usize);
        let inputs: Vec<_> = ns.iter().map(|n| apply(input, n)).collect();
        let mut states = vec![vec![vec![0.0; dim]; dim]; heads];
        let position = |p: usize| -> Vec<f64> {
            let n = &ns[p];
            let channel = |c: usize| -> f64 {
                let taps = (0..TAPS).filter_map(|tap| {
                    let at = (p + tap + 1).checked_sub(TAPS)?;
                    Some(f64::from(self.delta.kernel[c * TAPS + tap]) * inputs[at][c])
                });
                let sum: f64 = taps.sum();
                sum * sigmoid(sum)
            };
            let mixed: Vec<f64> = (0..shape.channels() as usize).map(channel).collect();
            let unit = |head: usize| -> Vec<f64> {
                let head = &mixed[head * dim..][..dim];
                let length = (head.iter().map(|x| x * x).sum::<f64>() + f64::from(EPS)).sqrt();
                head.iter().map(|x| x / length).collect()
            };
            let (steps, strengths, gates) = (apply(alpha, n), apply(beta, n), apply(gate, n));
            let mut y = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let (query, key) = (unit(head % keys), unit(keys + head % keys));
                let values = &mixed[(2 * keys + head) * dim..][..dim];
                let step = (steps[head] + f64::from(self.delta.step_bias[head])).exp().ln_1p();
                let decay = (f64::from(self.delta.decay[head]) * step).exp();
                state.iter_mut().flatten().for_each(|number| *number *= decay);
                let known = |d: usize| (0..dim).map(|k| state[k][d] * key[k]).sum::<f64>();
                let change: Vec<f64> =
                    (0..dim).map(|d| sigmoid(strengths[head]) * (values[d] - known(d))).collect();
                for (row, key) in state.iter_mut().zip(&key) {
                    row.iter_mut()
                        .zip(&change)
                        .for_each(|(number, change)| *number += key * change);
                }
                let scale = (dim as f64).sqrt();
                let o: Vec<f64> = (0..dim)
                    .map(|d| (0..dim).map(|k| state[k][d] * query[k]).sum::<f64>() / scale)
                    .collect();
                y.extend(rms(&o, head_norm));
            }
            y.iter_mut().zip(gates).for_each(|(y, gate)| *y *= gate * sigmoid(gate));
            apply(out, &y)
        };
        (0..ns.len()).map(position).collect()
    }

    /// The weighted sum of the chosen experts' outputs.
    fn mixture(
        &self,
        experts: &ExpertShape,
        [router, gate, up, down]: [&Weight; 4],
        n: &[f64],
    ) -> Vec<f64> {
        let Shape { width, hidden, .. } = self.shape;
        let score = |l: &f64| match experts.score {
            ExpertScore::Softmax => l.exp(),
            ExpertScore::Sigmoid => 1.0 / (1.0 + (-l).exp()),
        };
        let scores: Vec<f64> = apply(router, n).iter().map(score).collect();
        let biased = |e: usize| match (experts.score, experts.bias) {
            (_, None) => scores[e],
            (ExpertScore::Softmax, Some(bias)) => scores[e].ln() + f64::from(bias[e]),
            (ExpertScore::Sigmoid, Some(bias)) => scores[e] + f64::from(bias[e]),
        };
        let mut order: Vec<usize> = (0..experts.count).collect();
        // Stable: of equal scores the lower expert is first.
        order.sort_by(|a, b| biased(*b).total_cmp(&biased(*a)));
        let sum: f64 = order[..experts.used].iter().map(|e| scores[*e]).sum();
        let mut all = vec![0.0; width];
        for &e in &order[..experts.used] {
            let (g, u) = (apply_part(gate, e, hidden, n), apply_part(up, e, hidden, n));
            let h: Vec<f64> = (0..hidden).map(|i| self.activate(g[i]) * u[i]).collect();
            let y = apply_part(down, e, width, &h);
            all.iter_mut().zip(y).for_each(|(all, y)| *all += scores[e] / sum * y);
        }
        all
    }

    fn activate(&self, x: f64) -> f64 {
        match self.shape.activation {
            Activation::Silu => x * sigmoid(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::GeluTanh => gelu(x),
        }
    }

    fn rotate(&self, head: &[f64], position: usize) -> Vec<f64> {
        let mut out = head.to_vec();
        let pairs = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
            let (a, b) = match self.shape.pairs {
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
                RopePairs::Halves => (i, i + pairs),
            };
            let magnitude = f64::from(MAGNITUDE);
            out[a] = (head[a] * cos - head[b] * sin) * magnitude;
            out[b] = (head[a] * sin + head[b] * cos) * magnitude;
        }
        out
    }
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rms(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * f64::from(*w)).collect()
}

fn apply(weight: &Weight, x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    let mut y: Vec<f64> = weight.values.chunks(x.len()).map(dot).collect();
    if let Some(bias) = &weight.bias {
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b));
    }
    y
}

/// As [`apply`], with part `part` of `rows` rows.
fn apply_part(weight: &Weight, part: usize, rows: usize, x: &[f64]) -> Vec<f64> {
    let values = &weight.values[part * rows * x.len()..][..rows * x.len()];
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    values.chunks(x.len()).map(dot).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
