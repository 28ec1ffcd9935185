"""Makes nested.json: block efficiencies of nested priority block verification, in plain numpy: slow, and independent of
the Rust code that is tested against it. Run: python3 nested.py > nested.json (numpy needed).

Block verification of a path drawn by m emits 1 + sum b(x) tokens, b(xy) = min(b(x) p(y|x), m(xy)); m is the mass of the
priorities of prefix x under the law of the highest of K.
"""

import itertools
import json

import numpy as np


def optimal_law(demand, length, G):
    """The selection law m that maximises sum(min(demand, m)) among the reachable ones, and of these the balanced one:
    excess in proportion to demands, shortage in proportion to lengths.

    demand[i] >= 0, length[i] >= 0 with sum(length) = T; G convex on [0, T], G(0) = 0.
    Returns m and the order (ascending demand/length, zero lengths last)."""
    ratio = np.where(length > 0, demand / np.where(length > 0, length, 1.0), np.inf)
    order = [i for i in np.argsort(ratio, kind="stable") if length[i] > 0]
    P = np.concatenate([[0.0], np.cumsum(demand[order])])
    g = np.array([G(t) for t in np.concatenate([[0.0], np.cumsum(length[order])])])
    n = len(order)
    m = np.zeros_like(demand)
    # From vertex to vertex of the least concave majorant of (P, g): the steepest way up, the furthest of several.
    at = 0
    while at < n:
        slopes = [(g[j] - g[at]) / (P[j] - P[at]) if P[j] > P[at] else np.inf for j in range(at + 1, n + 1)]
        best = max(slopes)
        if best < 1.0 - 1e-13:
            break
        to = at + max(j for j, slope in enumerate(slopes, 1) if slope >= best - 1e-13 or slope == best)
        for i in order[at:to]:
            m[i] = best * demand[i] if best < np.inf else (g[to] - g[at]) * length[i] / sum(length[order[at:to]])
        at = to
    rest = order[at:]
    if rest:
        level = lambda c: np.minimum(demand[rest], c * length[rest])
        c = bisect(lambda c: level(c).sum() - (g[n] - g[at]), 0.0, max(ratio[rest]))
        m[rest] = level(c)
    return m, np.array(order + [i for i in range(len(demand)) if length[i] <= 0], dtype=int)


def bisect(f, lo, hi):
    """Root of a monotone f with a sign change on [lo, hi]."""
    rising = f(hi) >= f(lo)
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if (f(mid) < 0) == rising:
            lo = mid
        else:
            hi = mid
    return 0.5 * (lo + hi)


def lay_out(m, length, order, G):
    """Splits [0, T] among the tokens: pieces[i] is a list of intervals of total length length[i] and G-mass m[i]."""
    T = float(np.sum(length))
    rank = sorted(order, key=lambda i: (m[i] / length[i] if length[i] > 0 else np.inf))
    pieces = {i: [] for i in rank}
    gaps, y = [], 0.0  # free gaps below the frontier y, nearest last
    for i in rank:
        q, need = float(length[i]), float(m[i])
        if q <= 0.0:
            continue
        if y + q <= T * (1 + 1e-12) and need >= G(min(y + q, T)) - G(y) - 1e-15:
            slide = lambda c: G(min(c + q, T)) - G(c) - need  # the mean at the frontier is low enough: slide up
            c = max(T - q, y) if slide(max(T - q, y)) < 0 else (y if slide(y) >= 0 else bisect(slide, y, T - q))
            if c > y:
                gaps.append((y, c))
            y = min(c + q, T)
            pieces[i] = [(c, y)]
            continue
        taken, mass, own = 0.0, 0.0, []
        while gaps:  # take from the nearest gaps below
            s, e = gaps[-1]
            if taken + (e - s) <= q:
                over = y + q - taken - (e - s) > T * (1 + 1e-12)
                if over or mass + G(e) - G(s) + G(min(T, y + q - taken - (e - s))) - G(y) >= need - 1e-15:
                    gaps.pop()
                    own.append((s, e))
                    taken, mass = taken + e - s, mass + G(e) - G(s)
                    continue
            least, most = max(0.0, y + q - taken - T), min(e - s, q - taken)
            cut = lambda u: mass + G(e) - G(e - u) + G(min(T, y + q - taken - u)) - G(y) - need
            u = most if cut(most) > 0 else (least if cut(least) <= 0 else bisect(cut, least, most))
            own.append((e - u, e))
            gaps[-1] = (s, e - u)
            taken += u
            if e - u - s < 1e-15:
                gaps.pop()
            break
        if q - taken > 0:
            own.append((y, min(T, y + q - taken)))
            y = min(T, y + q - taken)
        pieces[i] = own
    return pieces


# A share: list of (start, length, weight) pieces, disjoint, sorted, weights sum to 1 (law of the
# priority)
def prof(U, K):
    U = sorted(U)
    w = np.array([x[2] for x in U]); at = np.concatenate([[0], np.cumsum(w)])
    mass = np.array([x[2] * ((x[0]+x[1])**K - x[0]**K)/x[1] if x[1] > 1e-300 else 0 for x in U])
    tot = mass.sum(); cum = np.concatenate([[0], np.cumsum(mass)])
    def G(t):
        k = min(max(int(np.searchsorted(at, t, side="right")) - 1, 0), len(U) - 1)
        s, l, ww = U[k]
        z = s + l * min(max(t - at[k], 0.0), ww) / ww
        part = ww / l * (z**K - s**K)
        return (cum[k] + part) / tot
    def back(a, b, weight):  # stretch interval [a,b] with total weight -> pieces
        out = []
        for k in range(len(U)):
            lo, hi = max(a, at[k]), min(b, at[k+1])
            if hi - lo > 1e-15:
                s, l, ww = U[k]
                out.append((s + l*(lo-at[k])/ww, l*(hi-lo)/ww, weight*(hi-lo)/(b-a)))
        return out
    return G, tot, back

def share(U, p, q, K, mode):
    G, tot, back = prof(U, K)
    m, order = optimal_law(p, q, G)      # demands relative to the mass of the share, lengths to its length
    rank = sorted(order, key=lambda i: (m[i]/q[i] if q[i] > 0 else np.inf))
    rank = [i for i in rank if q[i] > 0]
    out = {}
    if mode == "interval":
        for i, own in lay_out(m, q, order, G).items():
            if own: out[i] = sum((back(a, b, (b-a)/q[i]) for a, b in own), [])
        return out, {i: m[i] for i in out}, tot
    # blocks between tight points
    T = M = 0.0; start = 0; t0 = m0 = 0.0
    blocks = []
    for j, i in enumerate(rank):
        T += q[i]; M += m[i]
        if abs(M - G(min(T,1.0))) < 1e-11 or j + 1 == len(rank):
            blocks.append((rank[start:j+1], t0, T, m0, M)); start, t0, m0 = j+1, T, M
    for toks, a, b, ma, mb in blocks:
        ln, ms = b - a, G(min(b,1.0)) - G(a)
        if len(toks) == 1 :
            out[toks[0]] = back(a, b, 1.0); continue
        g = lambda t: (G(min(a + t*ln,1.0)) - G(a)) / ms if ms > 0 else t
        qq = np.array([q[i]/ln for i in toks]); mm = np.array([m[i]/ms if ms > 0 else q[i]/ln for i in toks])
        lam = 0.0; T = M = 0.0
        for x, y in zip(qq[:-1], mm[:-1]):
            T += x; M += y
            if T - g(T) > 1e-14: lam = max(lam, (T - M) / (T - g(T)))
        lam = min(max(lam, 0.0), 1.0)
        if lam > 1e-9:
            m2 = (mm - (1 - lam) * qq) / lam
            lay = lay_out(np.maximum(m2, 0), qq, list(range(len(toks))), g)
        for k, i in enumerate(toks):
            pcs = []
            if lam < 1 - 1e-12: pcs += [(s, l, w) for s, l, w in back(a, b, 1 - lam)]
            if lam > 1e-9:
                own = lay[k]
                for (x, y) in own: pcs += back(a + x*ln, a + y*ln, lam * (y - x) / qq[k])
            out[i] = merge(pcs)
    return out, {i: m[i] for i in out}, tot

def merge(pcs):
    ends = sorted({e for s, l, w in pcs for e in (s, s + l)})
    out = []
    for lo, hi in zip(ends, ends[1:]):
        if hi - lo < 1e-15: continue
        w = sum(w * (hi - lo) / l for s, l, w in pcs if s <= lo + 1e-16 and s + l >= hi - 1e-16)
        if w > 0: out.append((lo, hi - lo, w))
    tot = sum(x[2] for x in out)
    return [(s, l, w/tot) for s, l, w in out]

def eff(target, draft, V, L, K, mode):
    def below(x, U, b, mx):
        if len(x) == L: return 0.0
        total = 0.0
        # What block verification can use of the target there.
        sh, m, tot = share(U, b / mx * target[x], draft[x], K, mode)
        for y, own in sh.items():
            # m of the child from its own pieces
            my = mx * m[y]
            budget = min(b * target[x][y], my)
            total += budget + (below(x + (y,), own, budget, my) if budget > 0 else 0)
        return total
    return 1.0 + below((), [(0.0, 1.0, 1.0)], 1.0, 1.0)


def norm(values):
    return np.array(values) / np.sum(values)


def main():
    rng = np.random.default_rng(20)
    cases = []
    for V, L, K in [(3, 2, 2), (2, 3, 3), (3, 2, 3), (4, 2, 2), (2, 4, 2), (3, 1, 4), (2, 4, 4), (3, 3, 2)]:
        for agreement, lacks in [(0.0, 0.0), (0.4, 0.0), (0.8, 0.0), (0.6, 0.5)]:
            target, draft = {}, {}
            for n in range(L + 1):
                for x in itertools.product(range(V), repeat=n):
                    target[x] = norm(rng.dirichlet(np.ones(V)))
                    draft[x] = norm(agreement * target[x] + (1 - agreement) * rng.dirichlet(np.ones(V)))
                    if rng.random() < lacks:
                        draft[x][rng.integers(V)] = 0.0
                        draft[x] = norm(draft[x])
            table = lambda laws, depth: {
                " ".join(map(str, x)): list(map(float, law)) for x, law in laws.items() if len(x) <= depth
            }
            cases.append({
                "vocabulary": V,
                "depth": L,
                "paths": K,
                "target": table(target, L),
                "draft": table(draft, L - 1),
                "intervals": eff(target, draft, V, L, K, "interval"),
                "spread": eff(target, draft, V, L, K, "mix"),
            })
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
