r"""Exercise 6, thirty minutes: which tokens did the answer lean on?

Take the model's own box, right or wrong, and ask how its negative log-likelihood would change if
the embedding of an earlier token were scaled a little, number by number:

    J   = - sum over the box's tokens of log pi(token | what came before)
    s_t = || dJ/de_t * e_t ||_2         e_t: the embedding of token t, H numbers; * number by number

`forward` is what the training loop has at hand. You need of it

    forward.embeddings       (b, L, H)  of prompt and completion together, in the graph
    forward.position            (b, T)     where completion token t stands among the L
    forward.logprobs         (b, T)     log pi of the completion tokens, in the graph
    forward.completion_mask  (b, T)     bool, False on padding

and of `spans` the first and the last number: tokens start..end-1 of row i are its box, for
spans[i] = (start, content, close, end); spans[i] = None is a row without a box and gets 0.

One call is the heart of it: torch.autograd.grad(J, leaf, retain_graph=True). Unlike J.backward() it
leaves every parameter's .grad alone, and it keeps the graph, from which the policy loss is still to
be derived. `gather` along L fetches the T places of each row.

    python -m pytest exercises -k ex06
"""
import torch  # noqa: F401  in case you need it


def gradient_activation(forward, spans):
    """Returns saliency (b, T), 0 on padding, detached. At least one row has a box."""
    raise NotImplementedError
