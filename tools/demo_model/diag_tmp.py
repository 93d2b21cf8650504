import inspect, time, torch, torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
print(inspect.signature(varlen_attn))
torch.manual_seed(0)
T=8192; H=8; D=64
cuts=[0,300,812,1500,3000,3001,5000,8192,8192,8192]
b=torch.tensor(cuts,dtype=torch.int32,device="cuda")
q,k,v=(torch.randn(T,H,D,device="cuda",dtype=torch.bfloat16,requires_grad=True) for _ in range(3))
g=torch.randn(T,H,D,device="cuda",dtype=torch.bfloat16)
def ref(q,k,v):
    o=[]
    for a,e in zip(cuts,cuts[1:]):
        if e>a: o.append(F.scaled_dot_product_attention(*(y[a:e].float().transpose(0,1)[None] for y in (q,k,v)),is_causal=True)[0].transpose(0,1))
    return torch.cat(o)
r=ref(q,k,v); gr=torch.autograd.grad(r,(q,k,v),g.float())
def err(a,b): return ((a.float()-b.float()).norm()/b.float().norm()).item()
for name,f in (("eager",varlen_attn),("compiled",torch.compile(varlen_attn,dynamic=False))):
    o=f(q,k,v,b,b,4096,4096,window_size=(-1,0)); go=torch.autograd.grad(o,(q,k,v),g)
    print(name,err(o,r),[err(x,y) for x,y in zip(go,gr)])
