r"""Exercise 6, thirty minutes: which tokens did the answer depend on?

Take the model's own box, right or wrong. How would its negative log-likelihood change if we scaled
the embedding of an earlier token a little, number by number?

    J   = - sum over the box's tokens of log pi(token | earlier tokens)
    s_t = || dJ/de_t * e_t ||_2         e_t: the embedding of token t, H numbers; * number by number

`forward` is the training loop's forward pass. You need

    forward.embeddings       (b, L, H)  of prompt and completion together, with graph
    forward.position         (b, T)     index of completion token t among the L
    forward.logprobs         (b, T)     log pi of the completion tokens, with graph
    forward.completion_mask  (b, T)     bool, False on padding

and the first and the last number of each span: for spans[i] = (start, content, close, end), tokens
start..end-1 of row i are its box. spans[i] = None is a row without a box and gets 0.

The most important call is torch.autograd.grad(J, leaf, retain_graph=True). Unlike J.backward() it
does not touch any parameter's .grad. It also keeps the graph, because the policy loss still needs
it. `gather` along L takes the T positions of each row.

    python -m pytest exercises -k ex06
"""
import torch  # noqa: F401  in case you need it


def gradient_activation(forward, spans):
    """Returns saliency (b, T), 0 on padding, detached. At least one row has a box."""
    raise NotImplementedError


if __name__ == "__main__":
    raise SystemExit("Mark it with: python -m pytest exercises -k ex06")
