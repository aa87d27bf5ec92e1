import sys
import hypocenter.relations.catalogue.split as P
o=P._apart
def ap(base,facts,parts,rows):
    print("SPLIT",[float(v) for v in base.losses],[[float(v) for v in p.losses] for p in parts],file=sys.stderr); return o(base,facts,parts,rows)
P._apart=ap
import hypocenter.relations.subject as S
S.Subject.counts_to=lambda self,n: (print([ (getattr(e.function,'__name__',e.module and type(e.module).__name__), [a if isinstance(a,(int,float)) else type(a).__name__ for a in e.args], {k:(v if isinstance(v,(int,float,str)) else type(v).__name__) for k,v in e.kwargs.items()}) for e in self._events.values()],file=sys.stderr), False)[1]
