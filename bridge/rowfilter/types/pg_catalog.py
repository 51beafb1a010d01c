"""The built-in operators, functions, casts and types of PostgreSQL that decide which operator a filter means.

Copied from pg_operator, pg_proc, pg_cast and pg_type of PostgreSQL 18.6; a test compares them with a server. For each
name all signatures are listed, translated or not, since PostgreSQL chooses among all of them (`resolution`). Those that
end in `!` are not immutable, as are such casts; a type with `!` is the preferred one of its category.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPERATORS: Final = {
    "=": (
        "int4,int8,bool bool,bool,bool char,char,bool name,name,bool int2,int2,bool int4,int4,bool "
        "text,text,bool name,text,bool text,name,bool xid,xid,bool xid,int4,bool cid,cid,bool tid,tid,bool "
        "int8,int8,bool int8,int4,bool box,box,bool int2,int4,bool int4,int2,bool oid,oid,bool "
        "float4,float4,bool oidvector,oidvector,bool float8,float8,bool path,path,bool money,money,bool "
        "aclitem,aclitem,bool bpchar,bpchar,bool anyarray,anyarray,bool date,date,bool time,time,bool "
        "float4,float8,bool float8,float4,bool inet,inet,bool macaddr,macaddr,bool timestamptz,timestamptz,bool "
        "interval,interval,bool circle,circle,bool lseg,lseg,bool timetz,timetz,bool line,line,bool "
        "numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool int8,int2,bool bytea,bytea,bool "
        "timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! timestamp,date,bool "
        "timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! "
        "anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool jsonb,jsonb,bool "
        "macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool tsquery,tsquery,bool "
        "anyrange,anyrange,bool xid8,xid8,bool"
    ),
    "<>": (
        "int4,int8,bool bool,bool,bool name,text,bool text,name,bool tid,tid,bool int8,int8,bool int8,int4,bool "
        "int4,int4,bool int2,int2,bool text,text,bool int2,int4,bool int4,int2,bool oid,oid,bool "
        "float4,float4,bool char,char,bool name,name,bool oidvector,oidvector,bool float8,float8,bool "
        "point,point,bool money,money,bool bpchar,bpchar,bool anyarray,anyarray,bool date,date,bool "
        "time,time,bool float4,float8,bool float8,float4,bool inet,inet,bool macaddr,macaddr,bool "
        "timestamptz,timestamptz,bool interval,interval,bool circle,circle,bool timetz,timetz,bool "
        "lseg,lseg,bool numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool int8,int2,bool "
        "bytea,bytea,bool timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! "
        "timestamp,date,bool timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! "
        "anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool jsonb,jsonb,bool "
        "xid,xid,bool xid,int4,bool macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool "
        "tsquery,tsquery,bool anyrange,anyrange,bool xid8,xid8,bool"
    ),
    "<": (
        "int4,int8,bool bool,bool,bool int2,int2,bool int4,int4,bool name,text,bool text,name,bool "
        "int8,int8,bool int8,int4,bool box,box,bool int2,int4,bool int4,int2,bool oid,oid,bool "
        "float4,float4,bool char,char,bool oidvector,oidvector,bool name,name,bool text,text,bool "
        "float8,float8,bool path,path,bool money,money,bool bpchar,bpchar,bool anyarray,anyarray,bool "
        "date,date,bool time,time,bool float4,float8,bool float8,float4,bool inet,inet,bool "
        "macaddr,macaddr,bool timestamptz,timestamptz,bool interval,interval,bool circle,circle,bool "
        "timetz,timetz,bool lseg,lseg,bool numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool "
        "int8,int2,bool bytea,bytea,bool timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! "
        "timestamp,date,bool timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! "
        "tid,tid,bool anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool "
        "jsonb,jsonb,bool macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool "
        "tsquery,tsquery,bool anyrange,anyrange,bool xid8,xid8,bool"
    ),
    "<=": (
        "int4,int8,bool name,text,bool text,name,bool int8,int8,bool int8,int4,bool box,box,bool int2,int2,bool "
        "int4,int4,bool int2,int4,bool int4,int2,bool oid,oid,bool float4,float4,bool char,char,bool "
        "oidvector,oidvector,bool name,name,bool text,text,bool float8,float8,bool path,path,bool "
        "money,money,bool bpchar,bpchar,bool anyarray,anyarray,bool date,date,bool time,time,bool "
        "float4,float8,bool float8,float4,bool inet,inet,bool macaddr,macaddr,bool timestamptz,timestamptz,bool "
        "interval,interval,bool circle,circle,bool timetz,timetz,bool lseg,lseg,bool bool,bool,bool "
        "numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool int8,int2,bool bytea,bytea,bool "
        "timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! timestamp,date,bool "
        "timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! tid,tid,bool "
        "anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool jsonb,jsonb,bool "
        "macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool tsquery,tsquery,bool "
        "anyrange,anyrange,bool xid8,xid8,bool"
    ),
    ">": (
        "bool,bool,bool int4,int8,bool name,text,bool text,name,bool int8,int8,bool int8,int4,bool box,box,bool "
        "int2,int2,bool int4,int4,bool int2,int4,bool int4,int2,bool oid,oid,bool float4,float4,bool "
        "char,char,bool oidvector,oidvector,bool name,name,bool text,text,bool float8,float8,bool "
        "path,path,bool money,money,bool bpchar,bpchar,bool anyarray,anyarray,bool date,date,bool "
        "time,time,bool float4,float8,bool float8,float4,bool inet,inet,bool macaddr,macaddr,bool "
        "timestamptz,timestamptz,bool interval,interval,bool circle,circle,bool timetz,timetz,bool "
        "lseg,lseg,bool numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool int8,int2,bool "
        "bytea,bytea,bool timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! "
        "timestamp,date,bool timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! "
        "tid,tid,bool anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool "
        "jsonb,jsonb,bool macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool "
        "tsquery,tsquery,bool anyrange,anyrange,bool xid8,xid8,bool"
    ),
    ">=": (
        "int4,int8,bool name,text,bool text,name,bool int8,int8,bool int8,int4,bool box,box,bool int2,int2,bool "
        "int4,int4,bool int2,int4,bool int4,int2,bool oid,oid,bool float4,float4,bool char,char,bool "
        "oidvector,oidvector,bool name,name,bool text,text,bool float8,float8,bool path,path,bool "
        "money,money,bool bpchar,bpchar,bool anyarray,anyarray,bool date,date,bool time,time,bool "
        "float4,float8,bool float8,float4,bool inet,inet,bool macaddr,macaddr,bool timestamptz,timestamptz,bool "
        "interval,interval,bool circle,circle,bool timetz,timetz,bool lseg,lseg,bool bool,bool,bool "
        "numeric,numeric,bool bit,bit,bool varbit,varbit,bool int2,int8,bool int8,int2,bool bytea,bytea,bool "
        "timestamp,timestamp,bool date,timestamp,bool date,timestamptz,bool! timestamp,date,bool "
        "timestamptz,date,bool! timestamp,timestamptz,bool! timestamptz,timestamp,bool! tid,tid,bool "
        "anymultirange,anymultirange,bool uuid,uuid,bool record,record,bool pg_lsn,pg_lsn,bool jsonb,jsonb,bool "
        "macaddr8,macaddr8,bool anyenum,anyenum,bool tsvector,tsvector,bool tsquery,tsquery,bool "
        "anyrange,anyrange,bool xid8,xid8,bool"
    ),
    "+": (
        "int2,int2,int2 int4,int4,int4 int2,int4,int4 int4,int2,int4 float4,float4,float4 float8,float8,float8 "
        "int8,int8,int8 int8,int4,int8 int4,int8,int8 point,point,point path,path,path path,point,path "
        "box,point,box int8,int2,int8 int2,int8,int8 money,money,money _aclitem,aclitem,_aclitem "
        "date,interval,timestamp date,int4,date float4,float8,float8 float8,float4,float8 "
        "timestamptz,interval,timestamptz! interval,interval,interval date,time,timestamp "
        "date,timetz,timestamptz time,date,timestamp timetz,date,timestamptz circle,point,circle "
        "numeric,numeric,numeric time,interval,time timetz,interval,timetz interval,time,time "
        "timestamp,interval,timestamp interval,date,timestamp interval,timetz,timetz "
        "interval,timestamp,timestamp interval,timestamptz,timestamptz! int4,date,date inet,int8,inet "
        "int8,inet,inet anyrange,anyrange,anyrange anymultirange,anymultirange,anymultirange "
        "pg_lsn,numeric,pg_lsn numeric,pg_lsn,pg_lsn"
    ),
    "-": (
        "int2,int2,int2 int4,int4,int4 int2,int4,int4 int4,int2,int4 float4,float4,float4 float8,float8,float8 "
        "int8,int8,int8 int8,int4,int8 int4,int8,int8 point,point,point path,point,path box,point,box "
        "int8,int2,int8 int2,int8,int8 money,money,money _aclitem,aclitem,_aclitem date,interval,timestamp "
        "date,date,int4 date,int4,date float4,float8,float8 float8,float4,float8 "
        "timestamptz,timestamptz,interval timestamptz,interval,timestamptz! interval,interval,interval "
        "time,time,interval circle,point,circle numeric,numeric,numeric time,interval,time "
        "timetz,interval,timetz timestamp,timestamp,interval timestamp,interval,timestamp inet,int8,inet "
        "inet,inet,int8 pg_lsn,pg_lsn,numeric jsonb,text,jsonb jsonb,int4,jsonb jsonb,_text,jsonb "
        "anyrange,anyrange,anyrange anymultirange,anymultirange,anymultirange pg_lsn,numeric,pg_lsn"
    ),
    "*": (
        "int4,int4,int4 int2,int2,int2 int2,int4,int4 int4,int2,int4 float4,float4,float4 float8,float8,float8 "
        "int8,int8,int8 int8,int4,int8 int4,int8,int8 point,point,point path,point,path box,point,box "
        "int8,int2,int8 int2,int8,int8 money,float4,money float4,money,money money,float8,money "
        "money,int4,money money,int2,money float8,money,money int4,money,money int2,money,money "
        "float4,float8,float8 float8,float4,float8 circle,point,circle interval,float8,interval "
        "float8,interval,interval numeric,numeric,numeric money,int8,money int8,money,money "
        "anyrange,anyrange,anyrange anymultirange,anymultirange,anymultirange"
    ),
    "/": (
        "int2,int2,int2 int4,int4,int4 int2,int4,int4 int4,int2,int4 float4,float4,float4 float8,float8,float8 "
        "int8,int8,int8 int8,int4,int8 int4,int8,int8 point,point,point path,point,path box,point,box "
        "int8,int2,int8 int2,int8,int8 money,float4,money money,float8,money money,int4,money money,int2,money "
        "float4,float8,float8 float8,float4,float8 circle,point,circle interval,float8,interval "
        "numeric,numeric,numeric money,int8,money money,money,float8"
    ),
    "%": "int8,int8,int8 int2,int2,int2 int4,int4,int4 numeric,numeric,numeric",
    "||": (
        "anycompatiblearray,anycompatible,anycompatiblearray "
        "anycompatible,anycompatiblearray,anycompatiblearray "
        "anycompatiblearray,anycompatiblearray,anycompatiblearray text,text,text varbit,varbit,varbit "
        "bytea,bytea,bytea text,anynonarray,text! anynonarray,text,text! jsonb,jsonb,jsonb "
        "tsvector,tsvector,tsvector tsquery,tsquery,tsquery"
    ),
    "~~": "name,text,bool text,text,bool bpchar,text,bool bytea,bytea,bool",
    "~~*": "name,text,bool text,text,bool bpchar,text,bool",
    "!~~": "name,text,bool text,text,bool bpchar,text,bool bytea,bytea,bool",
    "!~~*": "name,text,bool text,text,bool bpchar,text,bool",
    "~": "name,text,bool text,text,bool bpchar,text,bool",
    "~*": "name,text,bool text,text,bool bpchar,text,bool",
    "!~": "name,text,bool text,text,bool bpchar,text,bool",
    "!~*": "name,text,bool text,text,bool bpchar,text,bool",
    "@>": (
        "box,point,bool polygon,polygon,bool box,box,bool path,point,bool polygon,point,bool circle,point,bool "
        "_aclitem,aclitem,bool circle,circle,bool anyarray,anyarray,bool anymultirange,anyelement,bool "
        "anymultirange,anyrange,bool anymultirange,anymultirange,bool jsonb,jsonb,bool tsquery,tsquery,bool "
        "anyrange,anyelement,bool anyrange,anyrange,bool anyrange,anymultirange,bool"
    ),
    "<@": (
        "polygon,polygon,bool box,box,bool point,box,bool point,path,bool point,polygon,bool point,circle,bool "
        "circle,circle,bool point,line,bool point,lseg,bool lseg,line,bool lseg,box,bool anyarray,anyarray,bool "
        "anyelement,anymultirange,bool anyrange,anymultirange,bool anymultirange,anymultirange,bool "
        "jsonb,jsonb,bool tsquery,tsquery,bool anyelement,anyrange,bool anyrange,anyrange,bool "
        "anymultirange,anyrange,bool"
    ),
    "&&": (
        "polygon,polygon,bool box,box,bool circle,circle,bool anyarray,anyarray,bool "
        "anyrange,anymultirange,bool anymultirange,anyrange,bool anymultirange,anymultirange,bool "
        "inet,inet,bool tsquery,tsquery,tsquery anyrange,anyrange,bool"
    ),
    "->": "jsonb,text,jsonb jsonb,int4,jsonb json,text,json json,int4,json",
    "->>": "jsonb,text,text jsonb,int4,text json,text,text json,int4,text",
    "?": "jsonb,text,bool",
    "?|": "point,point,bool jsonb,_text,bool",
    "?&": "jsonb,_text,bool",
    "^@": "text,text,bool",
    "&": (
        "bit,bit,bit macaddr,macaddr,macaddr macaddr8,macaddr8,macaddr8 inet,inet,inet int2,int2,int2 "
        "int4,int4,int4 int8,int8,int8"
    ),
    "|": (
        "bit,bit,bit macaddr,macaddr,macaddr macaddr8,macaddr8,macaddr8 inet,inet,inet int2,int2,int2 "
        "int4,int4,int4 int8,int8,int8"
    ),
    "#": "lseg,lseg,point box,box,box line,line,point bit,bit,bit int2,int2,int2 int4,int4,int4 int8,int8,int8",
    "prefix ~": "bit,bit macaddr,macaddr macaddr8,macaddr8 inet,inet int2,int2 int4,int4 int8,int8",
    "^": "float8,float8,float8 numeric,numeric,numeric",
    "prefix -": "int8,int8 int4,int4 int2,int2 float4,float4 float8,float8 interval,interval numeric,numeric",
    "prefix +": "int8,int8 int2,int2 int4,int4 float4,float4 float8,float8 numeric,numeric",
}
"""Name -> signatures `left,right,result`, or `right,result` of a prefix operator."""

_FUNCTIONS: Final = {
    "abs": "float4,float4 float8,float8 int8,int8 int4,int4 int2,int2 numeric,numeric",
    "array_length": "anyarray,int4,int4",
    "array_lower": "anyarray,int4,int4",
    "array_ndims": "anyarray,int4",
    "array_upper": "anyarray,int4,int4",
    "btrim": "text,text,text text,text bytea,bytea,bytea",
    "cardinality": "anyarray,int4",
    "ceil": "numeric,numeric float8,float8",
    "ceiling": "numeric,numeric float8,float8",
    "char_length": "bpchar,int4 text,int4",
    "character_length": "bpchar,int4 text,int4",
    "concat": "any,text!",
    "concat_ws": "text,any,text!",
    "date_part": (
        "text,timestamptz,float8! text,interval,float8 text,timetz,float8 text,date,float8 text,time,float8 "
        "text,timestamp,float8"
    ),
    "date_trunc": (
        "text,timestamptz,timestamptz! text,interval,interval text,timestamptz,text,timestamptz "
        "text,timestamp,timestamp"
    ),
    "extract": (
        "text,date,numeric text,time,numeric text,timetz,numeric text,timestamp,numeric "
        "text,timestamptz,numeric! text,interval,numeric"
    ),
    "floor": "numeric,numeric float8,float8",
    "isfinite": "date,bool timestamptz,bool interval,bool timestamp,bool",
    "left": "text,int4,text",
    "length": "text,int4 bpchar,int4 lseg,float8 path,float8 bit,int4 bytea,name,int4! bytea,int4 tsvector,int4",
    "like_escape": "text,text,text bytea,bytea,bytea",
    "lower": "text,text anyrange,anyelement anymultirange,anyelement",
    "lpad": "text,int4,text,text text,int4,text",
    "ltrim": "text,text,text text,text bytea,bytea,bytea",
    "make_date": "int4,int4,int4,date",
    "mod": "int2,int2,int2 int4,int4,int4 int8,int8,int8 numeric,numeric,numeric",
    "now": "timestamptz!",
    "octet_length": "bytea,int4 text,int4 bpchar,int4 bit,int4",
    "overlay": (
        "bytea,bytea,int4,int4,bytea bytea,bytea,int4,bytea text,text,int4,int4,text text,text,int4,text "
        "bit,bit,int4,int4,bit bit,bit,int4,bit"
    ),
    "position": "text,text,int4 bit,bit,int4 bytea,bytea,int4",
    "random": "float8! int4,int4,int4! int8,int8,int8! numeric,numeric,numeric!",
    "repeat": "text,int4,text",
    "replace": "text,text,text,text",
    "reverse": "text,text bytea,bytea",
    "right": "text,int4,text",
    "round": "float8,float8 numeric,int4,numeric numeric,numeric",
    "rpad": "text,int4,text,text text,int4,text",
    "rtrim": "text,text,text text,text bytea,bytea,bytea",
    "sign": "numeric,numeric float8,float8",
    "split_part": "text,text,int4,text",
    "sqrt": "float8,float8 numeric,numeric",
    "starts_with": "text,text,bool",
    "strpos": "text,text,int4",
    "substr": "text,int4,int4,text text,int4,text bytea,int4,int4,bytea bytea,int4,bytea",
    "substring": (
        "text,int4,int4,text text,int4,text bit,int4,int4,bit bit,int4,bit bytea,int4,int4,bytea "
        "bytea,int4,bytea text,text,text text,text,text,text"
    ),
    "to_hex": "int4,text int8,text",
    "translate": "text,text,text,text",
    "trunc": "macaddr,macaddr float8,float8 numeric,int4,numeric numeric,numeric macaddr8,macaddr8",
    "upper": "text,text anyrange,anyelement anymultirange,anyelement",
}
"""Name -> `argument,…,result`; the names that are translated, and a few that never can be."""

_CASTS: Final = (
    "int8,int2,af int8,int4,af int8,float4,if int8,float8,if int8,numeric,if int2,int8,if int2,int4,if "
    "int2,float4,if int2,float8,if int2,numeric,if int4,int8,if int4,int2,af int4,float4,if int4,float8,if "
    "int4,numeric,if float4,int8,af float4,int2,af float4,int4,af float4,float8,if float4,numeric,af "
    "float8,int8,af float8,int2,af float8,int4,af float8,float4,af float8,numeric,af numeric,int8,af "
    "numeric,int2,af numeric,int4,af numeric,float4,if numeric,float8,if money,numeric,af! numeric,money,af! "
    "int4,money,af! int8,money,af! int4,bool,ef bool,int4,ef xid8,xid,ef int8,oid,if int2,oid,if int4,oid,ib "
    "oid,int8,af oid,int4,ab oid,regproc,ib regproc,oid,ib int8,regproc,if int2,regproc,if int4,regproc,ib "
    "regproc,int8,af regproc,int4,ab regproc,regprocedure,ib regprocedure,regproc,ib oid,regprocedure,ib "
    "regprocedure,oid,ib int8,regprocedure,if int2,regprocedure,if int4,regprocedure,ib regprocedure,int8,af "
    "regprocedure,int4,ab oid,regoper,ib regoper,oid,ib int8,regoper,if int2,regoper,if int4,regoper,ib "
    "regoper,int8,af regoper,int4,ab regoper,regoperator,ib regoperator,regoper,ib oid,regoperator,ib "
    "regoperator,oid,ib int8,regoperator,if int2,regoperator,if int4,regoperator,ib regoperator,int8,af "
    "regoperator,int4,ab oid,regclass,ib regclass,oid,ib int8,regclass,if int2,regclass,if int4,regclass,ib "
    "regclass,int8,af regclass,int4,ab oid,regcollation,ib regcollation,oid,ib int8,regcollation,if "
    "int2,regcollation,if int4,regcollation,ib regcollation,int8,af regcollation,int4,ab oid,regtype,ib "
    "regtype,oid,ib int8,regtype,if int2,regtype,if int4,regtype,ib regtype,int8,af regtype,int4,ab "
    "oid,regconfig,ib regconfig,oid,ib int8,regconfig,if int2,regconfig,if int4,regconfig,ib "
    "regconfig,int8,af regconfig,int4,ab oid,regdictionary,ib regdictionary,oid,ib int8,regdictionary,if "
    "int2,regdictionary,if int4,regdictionary,ib regdictionary,int8,af regdictionary,int4,ab "
    "text,regclass,if! varchar,regclass,if! oid,regrole,ib regrole,oid,ib int8,regrole,if int2,regrole,if "
    "int4,regrole,ib regrole,int8,af regrole,int4,ab oid,regnamespace,ib regnamespace,oid,ib "
    "int8,regnamespace,if int2,regnamespace,if int4,regnamespace,ib regnamespace,int8,af regnamespace,int4,ab "
    "text,bpchar,ib text,varchar,ib bpchar,text,if bpchar,varchar,if varchar,text,ib varchar,bpchar,ib "
    "char,text,if char,bpchar,af char,varchar,af name,text,if name,bpchar,af name,varchar,af text,char,af "
    "bpchar,char,af varchar,char,af text,name,if bpchar,name,if varchar,name,if int2,bytea,ef int4,bytea,ef "
    "int8,bytea,ef bytea,int2,ef bytea,int4,ef bytea,int8,ef char,int4,ef int4,char,ef pg_node_tree,text,ib "
    "pg_ndistinct,bytea,ib pg_ndistinct,text,ii pg_dependencies,bytea,ib pg_dependencies,text,ii "
    "pg_mcv_list,bytea,ib pg_mcv_list,text,ii date,timestamp,if date,timestamptz,if! time,interval,if "
    "time,timetz,if! timestamp,date,af timestamp,time,af timestamp,timestamptz,if! timestamptz,date,af! "
    "timestamptz,time,af! timestamptz,timestamp,af! timestamptz,timetz,af! interval,time,af timetz,time,af "
    "point,box,af lseg,point,ef path,polygon,af box,point,ef box,lseg,ef box,polygon,af box,circle,ef "
    "polygon,point,ef polygon,path,af polygon,box,ef polygon,circle,ef circle,point,ef circle,box,ef "
    "circle,polygon,ef macaddr,macaddr8,if macaddr8,macaddr,if cidr,inet,ib inet,cidr,af bit,varbit,ib "
    "varbit,bit,ib int8,bit,ef int4,bit,ef bit,int8,ef bit,int4,ef cidr,text,af inet,text,af bool,text,af "
    "xml,text,ab text,xml,ef! cidr,varchar,af inet,varchar,af bool,varchar,af xml,varchar,ab varchar,xml,ef! "
    "cidr,bpchar,af inet,bpchar,af bool,bpchar,af xml,bpchar,ab bpchar,xml,ef! json,jsonb,ai jsonb,json,ai "
    "jsonb,bool,ef jsonb,numeric,ef jsonb,int2,ef jsonb,int4,ef jsonb,int8,ef jsonb,float4,ef jsonb,float8,ef "
    "int4range,int4multirange,ef int8range,int8multirange,ef numrange,nummultirange,ef "
    "daterange,datemultirange,ef tsrange,tsmultirange,ef tstzrange,tstzmultirange,ef"
)
"""`source,target,` then context (i implicit, a assignment, e explicit) and method (f function, b binary, i I/O)."""

_CATEGORIES: Final = {
    "B": "bool!",
    "D": "date time timestamp timestamptz! timetz",
    "G": "point lseg path box polygon line circle",
    "I": "cidr inet!",
    "N": (
        "int8 int2 int4 regproc oid! float4 float8! money numeric regprocedure regoper regoperator regclass "
        "regtype regconfig regdictionary regnamespace regrole regcollation"
    ),
    "R": "int4range numrange tsrange tstzrange daterange int8range",
    "S": "name text! bpchar varchar",
    "T": "interval!",
    "U": (
        "bytea tid xid cid json xml macaddr8 macaddr aclitem refcursor uuid txid_snapshot pg_lsn tsvector "
        "tsquery gtsvector jsonb jsonpath pg_snapshot xid8"
    ),
    "V": "bit varbit!",
    "Z": (
        "char pg_node_tree pg_ndistinct pg_dependencies pg_brin_bloom_summary pg_brin_minmax_multi_summary pg_mcv_list"
    ),
}
"""pg_type.typcategory -> types."""


class Signature(NamedTuple):
    """An operator or a function.

    Attributes:
        arguments: The names of the arguments' types in pg_type, which may be polymorphic.
        result: The name of the result's type.
        immutable: Whether a row filter may call it.
    """

    arguments: tuple[str, ...]
    result: str
    immutable: bool


class Cast(NamedTuple):
    """A row of pg_cast.

    Attributes:
        context: castcontext: i implicit, a assignment, e explicit.
        method: castmethod: f a function, b binary-coercible, i by way of the text form.
    """

    context: str
    method: str
    immutable: bool


def _signatures(rows: Mapping[str, str]) -> Mapping[str, tuple[Signature, ...]]:
    return MappingProxyType({name: tuple(_signature(one) for one in row.split()) for name, row in rows.items()})


def _signature(one: str) -> Signature:
    *arguments, result = one.removesuffix("!").split(",")
    return Signature(tuple(arguments), result, not one.endswith("!"))


OPERATORS: Final = _signatures(_OPERATORS)
FUNCTIONS: Final = _signatures(_FUNCTIONS)
CASTS: Final[Mapping[tuple[str, str], Cast]] = MappingProxyType(
    {
        (source, target): Cast(how[0], how[1], not how.endswith("!"))
        for source, target, how in (one.split(",") for one in _CASTS.split())
    }
)
CATEGORY: Final[Mapping[str, str]] = MappingProxyType(
    {name.removesuffix("!"): category for category, names in _CATEGORIES.items() for name in names.split()}
)
PREFERRED: Final = frozenset(
    name.removesuffix("!") for names in _CATEGORIES.values() for name in names.split() if name.endswith("!")
)
